# The part `bench` of gpu_report.sh: bench_step at the users' shape, loading, the trace, PyTorch + PEFT. Sourced.
#
# Every figure stands beside its floor or its limit. Each line of the table is also a comparison: bench_step fails when
# losses, gradient norms or final adapters differ between streamed and resident in a single bit.

bench() {  # NAME, then flags
    run "bench-$1" 120 "$bf16/bench_step" "${@:2}"
}

# figure NAME EXPRESSION: sed's first group in a benchmark's output, without thousands separators
figure() { sed -nE "s/$2/\1/p" "$work/bench-$1.out" | head -n 1 | tr -d ,; }

table_head() {
    say "| B | T | layers | R | resident ms | one after the other | streamed ms | floor ms | streamed / floor |" \
        "tok/s | MFU | waiting | peak bytes | plan bytes |"
    say "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
}
figures() {  # NAME: the figures that are judged, into variables
    resident_ms=$(figure "$1" 'resident step ([0-9.]+) ms.*')
    alone_ms=$(figure "$1" 'resident steps one after the other ([0-9.]+) ms.*')
    streamed_ms=$(figure "$1" 'streamed step ([0-9.]+) ms.*')
    floor_ms=$(figure "$1" 'floor ([0-9.]+) ms.*')
    peak_bytes=$(figure "$1" '^streamed peak device memory ([0-9,]+) bytes.*')
    plan_bytes=$(figure "$1" '^streamed peak device memory .*planned ([0-9,]+) bytes.*')
}
# table_row NAME B T LAYERS: MFU is the resident step's, the peak the streamed model's.
table_row() {
    figures "$1"
    say "| $2 | $3 | $4 | $(figure "$1" 'streamed step .* R ([0-9]+),.*') | $resident_ms | $alone_ms | $streamed_ms |" \
        "$floor_ms |" \
        "$(figure "$1" '.*streamed \/ floor ([0-9.]+).*') | $(figure "$1" 'streamed step .* ms  ([0-9,]+) tok.*') |" \
        "$(figure "$1" 'resident step .*  ([0-9.]+%) of the .*') | $(figure "$1" '.*waiting ([0-9.]+%).*') |" \
        "$peak_bytes | $plan_bytes |"
}
worked() {  # NAME: it ran to its end
    skipped "bench-$1" && return 1
    [ "$(status_of "bench-$1")" = 0 ]
}
report_failure() {  # NAME
    worked "$1" && return
    if skipped "bench-$1"; then
        verdict "bench_step $1" skip "no time left"
    else
        verdict "bench_step $1" fail "exit status $(status_of "bench-$1")"
        excerpt "bench-$1"
    fi
}

# The time of each operation in one resident step. The rest of the step is gaps between launches.
breakdown() {  # NAME TITLE
    worked "$1" || return
    say ""
    say "Where the resident step goes, $2:"
    say ""
    sed -n '/^where the resident/,$p' "$work/bench-$1.out" > "$work/breakdown"
    code "$work/breakdown"
}

bench_streaming() {
    local B R name
    timeout 60 nvidia-smi -i 0 --query-gpu=clocks.sm,power.draw,power.limit --format=csv,noheader,nounits -lms 50 \
        > "$work/clocks" &
    local sampler=$!
    bench B4-R2 --micro-batch-size 4 --layer-offloading --num-slots 2 --steps 8
    kill "$sampler" 2> /dev/null
    wait "$sampler" 2> /dev/null
    for B in 4 1 2 8; do
        for R in 2 3; do
            [ "B$B-R$R" = B4-R2 ] && continue
            bench "B$B-R$R" --micro-batch-size "$B" --layer-offloading --num-slots "$R" --steps 8
        done
    done
    bench 32layers --layers 32 --micro-batch-size 4 --recompute block --layer-offloading --num-slots 2 --steps 5
    bench T32768 --layers 4 --sequence-len 32768 --layer-offloading --num-slots 2 --steps 4
    bench link12 --micro-batch-size 4 --layer-offloading --num-slots 2 --link-limit 12 --steps 5
}

report_streaming() {
    local B R name
    say "\`$bf16/bench_step --micro-batch-size B --layer-offloading --num-slots R\`: hidden 4096, intermediate 11008," \
        "32 heads, vocabulary 32000, LoRA r 16 on all seven linears. Resident and streamed steps alternate, also" \
        "those from which the floor's parts are taken; then resident steps are timed one after the other, as a" \
        "trainer runs them. A GPU at its power limit lowers its clocks, so that a step is faster between steps that" \
        "wait for the link, and a streamed step can be faster than a floor whose parts were measured under more" \
        "load. MFU: the resident step against the rate of matrix products measured in the same run."
    say ""
    say '```'
    sed -nE '/^(NVIDIA|link at|  in the step)/p' "$work/bench-B4-R2.out" >> "$section"
    say '```'
    say ""
    table_head
    for B in 1 2 4 8; do
        for R in 2 3; do
            worked "B$B-R$R" && table_row "B$B-R$R" "$B" 2048 16
        done
    done
    worked 32layers && table_row 32layers 4 2048 "32, recompute block"
    worked T32768 && table_row T32768 1 32768 4
    worked link12 && table_row link12 4 2048 "16, link emulated at 12 GB/s"
    say ""
    for B in 1 2 4 8; do
        for R in 2 3; do
            name=B$B-R$R
            report_failure "$name"
            worked "$name" || continue
            figures "$name"
            check "B $B, R $R: at most 1.03 x the floor + 1 ms" \
                "$streamed_ms ms, limit $(limit "1.03 * $floor_ms + 1")" holds "$streamed_ms <= 1.03 * $floor_ms + 1"
        done
    done
    if worked B4-R2; then
        figures B4-R2
        check "B 4 resident, one after the other: at most 230 ms (215 is the goal)" "$alone_ms ms" \
            holds "$alone_ms <= 230"
        say "- the card under B 4: $(clocks_under_load)"
    fi
    report_failure 32layers
    if worked 32layers; then
        figures 32layers
        check "32 layers: at most 1.05 x the floor" "$streamed_ms ms, limit $(limit "1.05 * $floor_ms")" \
            holds "$streamed_ms <= 1.05 * $floor_ms"
        check "32 layers: peak at most 5.7 GB" "$peak_bytes bytes" holds "$peak_bytes <= 5.7e9"
        check "32 layers: peak equals the plan within 2%" "$peak_bytes and $plan_bytes bytes" \
            holds "$peak_bytes <= 1.02 * $plan_bytes && $peak_bytes >= 0.98 * $plan_bytes"
    fi
    report_failure T32768
    worked T32768 &&
        verdict "T 32768, B 1, 4 layers: streamed and resident agree in every bit of losses, norms and adapters" pass
    report_failure link12
    breakdown B1-R2 "B 1, 16 layers"
    breakdown B4-R2 "B 4, 16 layers"
}
# Of the samples taken while the card drew more than half of its power limit.
clocks_under_load() {
    awk -F', ' '$2 > $3 / 2 { n++; mhz += $1; w += $2; limit = $3
                              if ($2 > top) top = $2; if (!low || $1 < low) low = $1; if ($1 > high) high = $1 }
        END { if (!n) print "not sampled"
              else printf "%d to %d MHz, %d on average; %d W on average, %d at most, limit %d", low, high, mhz / n,
                          w / n, top, limit }' "$work/clocks"
}
limit() { awk "BEGIN { printf \"%.2f\", $1 }"; }

used_mib() { nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1; }

# 32 layers from warm files to page-locked memory; then four steps, two of them traced. A second run with B 4 compares the
# driver's count of the card's memory with the plan.
bench_loading() {
    local base=$work/base
    # Files in memory where there is room: no write-back disturbs the measurement.
    if [ "$(df --output=avail -B1G /dev/shm 2> /dev/null | tail -n 1)" -ge 16 ] 2> /dev/null; then
        base=$memory_base
    fi
    write_tokens
    run make-base 120 python3 dev/gpu_report.d/make_base.py "$base" --layers 32
    if [ "$status" = 0 ]; then
        run loading 120 "$bf16/train_gpt" --base-model "$base" --train-data "$work/data/train.bin" --max-steps 4 \
            --sequence-len 2048 --layer-offloading --num-slots 2 --output-dir "$work/loading" \
            --trace "$work/trace.json" --trace-steps 3:4
        run trace 20 python3 dev/gpu_report.d/trace_gaps.py "$work/trace.json"
        used_before_mib=$(used_mib)
        timeout 150 nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 > "$work/used" &
        local sampler=$!
        run memory 60 "$bf16/train_gpt" --base-model "$base" --train-data "$work/data/train.bin" --max-steps 2 \
            --sequence-len 2048 --micro-batch-size 4 --layer-offloading --num-slots 2 --output-dir "$work/memory"
        kill "$sampler" 2> /dev/null
        wait "$sampler" 2> /dev/null
    fi
    rm -rf "$base"
}
report_loading() {
    say ""
    say "Loading: 32 layers of that shape from warm bf16 files," \
        "\`train_gpt --layer-offloading --num-slots 2\`:"
    say ""
    if [ "$(status_of make-base)" != 0 ] || [ "$(status_of loading)" != 0 ]; then
        if skipped make-base || skipped loading; then
            verdict "loading" skip "no time left"
        else
            verdict "loading" fail "exit status $(status_of make-base), $(status_of loading)"
            cat "$work/make-base.out" "$work/loading.out" > "$work/both.out" 2> /dev/null
            excerpt both
        fi
        return
    fi
    grep -E '^(loaded|loading|step|streamed|peak|note|offload)' "$work/loading.out" | cut -c 1-300 > "$work/excerpt"
    code "$work/excerpt"
    local seconds
    seconds=$(sed -nE 's/^loaded in ([0-9.]+) s.*/\1/p' "$work/loading.out")
    check "13 GB read, checked and page-locked in at most 4 s" "${seconds:-?} s" holds "${seconds:-99} <= 4"
    # The driver's count for the whole card, less the memory in use before.
    local planned_bytes used_bytes
    planned_bytes=$(sed -nE 's/.*"planned_device_bytes":([0-9]+).*/\1/p' "$work/memory/log.jsonl" | head -n 1)
    used_bytes=$(sort -n "$work/used" | tail -n 1 |
        awk -v before="$used_before_mib" '{ printf "%d", ($1 - before) * 1048576 }')
    check "B 4: device memory in use, as nvidia-smi sees it, equals the plan within 2%" \
        "${used_bytes:-?} bytes, planned ${planned_bytes:-?}" \
        holds "${used_bytes:-0} >= 0.98 * ${planned_bytes:-1} && ${used_bytes:-0} <= 1.02 * ${planned_bytes:-1}"
    check "copies lie back to back but for the two turns" "$(head -n 1 "$work/trace.out")" [ "$(status_of trace)" = 0 ]
    [ "$(status_of trace)" = 0 ] || excerpt trace
}

peft() {  # NAME, then flags
    run "peft-$1" 150 python3 dev/compare_peft.py --layers 16 "${@:2}"
}
report_peft() {
    local name
    say ""
    say "PyTorch + PEFT at the same shape, resident, \`dev/compare_peft.py --layers 16\`:"
    say ""
    for name in B1 B4 B4-compiled; do
        if skipped "peft-$name"; then
            verdict "PyTorch $name" skip "no time left"
        elif [ "$(status_of "peft-$name")" = 0 ]; then
            say "- $(grep '^PyTorch' "$work/peft-$name.out")"
        elif [ "$(status_of "peft-$name")" = 124 ]; then
            verdict "PyTorch $name" skip "it did not end in the time that was left"
        else
            verdict "PyTorch $name" fail "exit status $(status_of "peft-$name")"
            excerpt "peft-$name" 5
        fi
    done
}

part_bench() {
    build bf16 "$bf16" "$bf16/bench_step" "$bf16/train_gpt" "$bf16/tokenize"
    check "the build" "exit status $status" [ "$status" = 0 ]
    bench_streaming
    report_streaming
    bench_loading
    report_loading
    peft B4 --micro-batch-size 4
    peft B1 --micro-batch-size 1
    peft B4-compiled --micro-batch-size 4 --compile
    report_peft
}
