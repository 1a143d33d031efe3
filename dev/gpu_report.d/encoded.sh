# The part `encoded` of gpu_report.sh: slabs that stay in blocks on their way to the device. Sourced, after bench.sh.
#
# Steps of the 16-layer shape in q8_0 and nf4 beside their floors, the 70B shape within 16 GiB, and a GGUF file of mixed
# types trained as it is. GPU_REPORT_ENCODED="steps" (or 70B, as-is) runs these alone.

encoded_wants() { case " ${GPU_REPORT_ENCODED:-steps 70B as-is} " in *" $1 "*) true ;; *) false ;; esac; }

seventy=(--hidden 8192 --intermediate 28672 --layers 80 --heads 64 --kv-heads 8 --vocab 128256 --recompute block
    --layer-offloading --num-slots 2 --streamed-only --steps 3 --warmup 1)

encoded_70B() {
    local format
    for format in nf4 q8_0; do bench "70B-$format" "${seventy[@]}" --slab-format "$format"; done
}
report_70B() {
    local format tokens
    say ""
    say "The 70B shape, T 2048, r 16, recompute block, one micro-batch of one row a step, layers filled in memory:" \
        "\`bench_step ${seventy[*]} --slab-format F\`."
    say ""
    table_head
    for format in nf4 q8_0; do worked "70B-$format" && table_row "70B-$format" 1 2048 "80, $format"; done
    say ""
    for format in nf4 q8_0; do
        report_failure "70B-$format"
        worked "70B-$format" || continue
        figures "70B-$format"
        local least=1000
        [ $format = q8_0 ] && least=720
        tokens=$(figure "70B-$format" 'streamed step .* ms  ([0-9,]+) tok.*')
        check "70B, $format: at least $least tokens/s" "$tokens tokens/s" holds "$tokens >= $least"
        check "70B, $format: within 16 GiB" "$peak_bytes bytes" holds "$peak_bytes <= 16 * 1024 ^ 3"
        check "70B, $format: the peak is the plan" "$plan_bytes bytes" holds "$peak_bytes == $plan_bytes"
        local host_bytes
        host_bytes=$(figure "70B-$format" 'host memory at its peak ([0-9,]+) bytes.*')
        check "70B, $format: at most 85 GB of host memory" "$host_bytes bytes" holds "$host_bytes <= 85e9"
        say "- 70B, $format: $(grep '^decoding' "$work/bench-70B-$format.out"), $(grep '^streamed visits' "$work/bench-70B-$format.out")"
    done
}

encoded_steps() {
    local format B R
    for B in 1 2; do bench "enc-bf16-B$B-R2" --micro-batch-size "$B" --layer-offloading --num-slots 2 --steps 5 --repeat-layer; done
    for B in 1 2 4 8; do
        for format in q8_0 nf4; do
            for R in 2 3; do
                bench "enc-$format-B$B-R$R" --micro-batch-size "$B" --layer-offloading --num-slots "$R" \
                    --slab-format "$format" --steps 5 --warmup 1 --repeat-layer
            done
        done
    done
}
report_steps() {
    local format B R name bf16_ms bf16_resident_ms copy
    say ""
    say "\`bench_step --micro-batch-size B --num-slots R --slab-format F --repeat-layer\`, 16 layers of hidden 4096:"
    say ""
    table_head
    for B in 1 2; do worked "enc-bf16-B$B-R2" && table_row "enc-bf16-B$B-R2" "$B" 2048 "16, bf16"; done
    for format in q8_0 nf4; do
        for B in 1 2 4 8; do
            for R in 2 3; do
                name=enc-$format-B$B-R$R
                worked "$name" && table_row "$name" "$B" 2048 "16, $format"
            done
        done
    done
    say ""
    for B in 1 2; do report_failure "enc-bf16-B$B-R2"; done
    for format in q8_0 nf4; do
        for B in 1 2 4 8; do
            for R in 2 3; do
                name=enc-$format-B$B-R$R
                report_failure "$name"
                worked "$name" || continue
                figures "$name"
                check "$format, B $B, R $R: at most 1.03 x the floor + 1 ms" \
                    "$streamed_ms ms, limit $(limit "1.03 * $floor_ms + 1")" holds "$streamed_ms <= 1.03 * $floor_ms + 1"
                check "$format, B $B, R $R: the peak is the plan" "$plan_bytes bytes" holds "$peak_bytes == $plan_bytes"
            done
        done
        worked "enc-$format-B1-R2" || continue
        copy=$(sed -nE 's/^decoding .*, ([0-9.]+)% of a device copy/\1/p' "$work/bench-enc-$format-B1-R2.out")
        check "$format: decoding at 75% of the device copy rate (85% is the goal)" "${copy:-?}%" holds "${copy:-0} >= 75"
    done
    if worked enc-bf16-B1-R2; then
        figures enc-bf16-B1-R2
        bf16_ms=$streamed_ms
        share_of_bf16 q8_0 2 0.57
        share_of_bf16 q8_0 3 0.53
        share_of_bf16 nf4 2 0.33
    fi
    if worked enc-bf16-B2-R2 && worked enc-nf4-B2-R2; then
        figures enc-bf16-B2-R2
        bf16_resident_ms=$resident_ms
        figures enc-nf4-B2-R2
        check "nf4, B 2: at most 1.03 x the resident nf4 step + 1 ms" "$streamed_ms and $resident_ms ms" \
            holds "$streamed_ms <= 1.03 * $resident_ms + 1"
        check "nf4, B 2: at most 1.08 x the resident bf16 step" "$streamed_ms and $bf16_resident_ms ms" \
            holds "$streamed_ms <= 1.08 * $bf16_resident_ms"
    fi
}
share_of_bf16() {  # FORMAT R SHARE
    worked "enc-$1-B1-R$2" || return
    figures "enc-$1-B1-R$2"
    check "$1, B 1, R $2: at most $3 of the bf16 streamed step" "$streamed_ms of $bf16_ms ms" \
        holds "$streamed_ms <= $3 * $bf16_ms"
}

# One run on the file's blocks and one on what they decode to.
encoded_as_is() {
    local base=$work/mixed.gguf format
    [ "$(df --output=avail -B1G /dev/shm 2> /dev/null | tail -n 1)" -ge 8 ] 2> /dev/null && base=$memory_base.gguf
    write_tokens
    run make-blocks 60 python3 dev/gpu_report.d/make_blocks.py "$base" --layers 16
    for format in as-is bf16; do
        run "blocks-$format" 60 "$bf16/train_gpt" --base-model "$base" --train-data "$work/data/train.bin" --max-steps 4 \
            --sequence-len 2048 --layer-offloading --num-slots 2 --recompute none --slab-format "$format" \
            --output-dir "$work/blocks-$format"
    done
    rm -f "$base"
}
report_as_is() {
    local format adapter=adapter_model.safetensors
    say ""
    say "A GGUF file of Q4_K and Q6_K blocks, 16 layers of hidden 4096, \`train_gpt --layer-offloading --num-slots 2\`:"
    say ""
    if skipped blocks-as-is || skipped blocks-bf16; then verdict "slabs as-is" skip "no time left"; return; fi
    for format in as-is bf16; do
        check "slabs $format" "exit status $(status_of "blocks-$format")" [ "$(status_of "blocks-$format")" = 0 ]
        [ "$(status_of "blocks-$format")" = 0 ] || excerpt "blocks-$format"
    done
    check "as-is gives the adapter of the decoded run, bit for bit" "$adapter" \
        cmp -s "$work/blocks-as-is/$adapter" "$work/blocks-bf16/$adapter"
    for format in as-is bf16; do
        say ""
        grep -E '^(loaded|slabs|host memory|step [34]|streamed|peak)' "$work/blocks-$format.out" | cut -c 1-300 > "$work/excerpt"
        code "$work/excerpt"
    done
}

part_encoded() {
    build bf16 "$bf16" "$bf16/bench_step" "$bf16/train_gpt" "$bf16/tokenize"
    check "the build" "exit status $status" [ "$status" = 0 ]
    if encoded_wants 70B; then encoded_70B; report_70B; fi
    if encoded_wants steps; then encoded_steps; report_steps; fi
    if encoded_wants as-is; then encoded_as_is; report_as_is; fi
}
