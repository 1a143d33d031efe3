# The part `multi` of gpu_report.sh: several ranks, on the GPUs that are here. Sourced, not run.
#
# On one GPU, ranks share it (--gpus 0,0): bits, memory and failures are those of several GPUs, speed is not. On two or
# more, each rank has its own, and what is said of speed is measured. Nothing has to be edited for either.

multi_gpus() {  # how many ranks: as --gpus wants them
    if [ "$gpus_here" -ge "$1" ]; then seq -s, 0 $(($1 - 1)); else seq -s, 1 "$1" | sed 's/[0-9]*[0-9]/0/g'; fi
}

multi_case() {  # NAME CASE, then flags
    timeout 90 "$bf16/parity_gpt" "$2" "${@:3}" > "$work/multi/$1.$(basename "$2")" 2>&1 < /dev/null
    echo "exit $?" >> "$work/multi/$1.$(basename "$2")"
}

# Adapter cases on one rank, and on several in each way.
multi_parity() {
    local case transport n
    mkdir -p "$work/multi"
    export -f multi_case
    export work bf16
    for case in tests/fixtures/*/; do
        [ -d "$case/adapter" ] || continue
        echo "one $case"
        for n in 2 4; do
            echo "local-$n $case --gpus $(multi_gpus $n)"
            echo "local-$n-streamed $case --gpus $(multi_gpus $n) --layer-offloading"
            if [ "$gpus_here" -ge "$n" ]; then
                echo "nccl-$n $case --gpus $(multi_gpus $n) --transport nccl"
                echo "nccl-$n-streamed $case --gpus $(multi_gpus $n) --transport nccl --layer-offloading"
            fi
        done
    done > "$work/multi-runs"
    # shellcheck disable=SC2016
    run multi-parity 260 xargs -a "$work/multi-runs" -P 8 -I '{}' bash -c 'multi_case $1' parity '{}'
    cat "$work"/multi/* >> "$log" 2> /dev/null
}
multi_report_parity() {  # NAME
    local out cases=0 good=0 same=0 bad=
    if skipped multi-parity; then verdict "parity on ranks, $1" skip "no time left"; return; fi
    for out in "$work"/multi/one.*; do
        local case=${out##*/one.} its=$work/multi/$1.${out##*/one.}
        cases=$((cases + 1))
        if grep -q '^exit 0$' "$its" 2> /dev/null && grep -Eq '^[1-9][0-9]* passed, 0 failed$' "$its"; then
            good=$((good + 1))
        else
            bad+=" $case"
        fi
        [ "$(sed -n 's/^bits //p' "$its" 2> /dev/null)" = "$(sed -n 's/^bits //p' "$out")" ] && same=$((same + 1))
    done
    check "parity on ranks, $1" "$good of $cases cases, each peak its plan; $same with one rank's bits" \
        [ "$good" = "$cases" -a "$same" = "$cases" -a "$cases" -gt 20 ]
    for case in $bad; do
        grep -Ev '^(PASS|bits)' "$work/multi/$1.$case" 2> /dev/null | tail -n 4 > "$work/excerpt"
        code "$work/excerpt"
    done
}

# Steps of a 7B-wide model; the program compares bits and memory itself.
multi_bench() {  # NAME TITLE LIMIT FLAGS...: the step on N ranks is at most LIMIT of one rank's for all of its work
    run "multi-$1" 150 "$bf16/bench_ranks" "${@:4}"
    if skipped "multi-$1"; then
        verdict "$2" skip "no time left"
        return
    fi
    local ratio
    ratio=$(sed -nE 's/^[0-9]+ ranks: .*, ([0-9.]+) for all$/\1/p' "$work/multi-$1.out")
    check "$2" "${ratio:-no} of one rank's time for all micro-batches; at most $3 wanted" \
        holds "${ratio:-9} <= $3 && $(status_of "multi-$1") == 0"
    grep -vE '^$' "$work/multi-$1.out" | tail -n 12 > "$work/excerpt"
    code "$work/excerpt"
}

# A run whose rank 1 fails in this way ends with its name, and goes on afterwards to the unbroken run's bits.
multi_fault() {  # throw, hang or kill
    local command=("$bf16/train_gpt" --base-model "$work/small" --from-scratch --train-data "$work/data/train.bin"
        --max-steps 8 --sequence-len 256 --lora-r 8 --layer-offloading --save-steps 1 --resume-from-checkpoint last
        --comm-timeout 5 --gpus "$(multi_gpus 2)")
    local began=$SECONDS named=0
    if [ ! -f "$work/unbroken/adapter_model.safetensors" ]; then
        run multi-unbroken 90 "${command[@]}" --output-dir "$work/unbroken"
    fi
    run "multi-$1" 90 env SLABSTREAM_FAULT="1:gradients:4:$1" "${command[@]}" --output-dir "$work/faulty-$1"
    local ended=$status took=$((SECONDS - began))
    [ "$1" = kill ] && [ "$ended" = 137 ] && named=1
    grep -Eq '^train_gpt: rank 1 \(GPU [0-9]+\)(: a fault| has been at `gradients)' "$work/multi-$1.out" && named=1
    run "multi-$1-resumed" 90 "${command[@]}" --output-dir "$work/faulty-$1"
    check "a rank made to $1" "exit status $ended after $took s; resumed with status $status" \
        eval "[ $named = 1 ] && cmp -s '$work/unbroken/adapter_model.safetensors' '$work/faulty-$1/adapter_model.safetensors'"
    tail -n 2 "$work/multi-$1.out" | cut -c 1-240 > "$work/excerpt"
    code "$work/excerpt"
}

part_multi() {
    local gpus_here
    gpus_here=$(nvidia-smi -L | wc -l)
    say "$gpus_here GPU(s) here. Ranks: \`--gpus $(multi_gpus 2)\` and \`--gpus $(multi_gpus 4)\`. Parity:" \
        "\`$bf16/parity_gpt CASE --gpus ...\`; steps: \`$bf16/bench_ranks\`; failures: \`SLABSTREAM_FAULT\`."
    say ""
    build bf16 "$bf16" all "$bf16/tests"
    check "the bf16 build" "exit status $(status_of build-bf16)" [ "$(status_of build-bf16)" = 0 ]
    run tests-sums 120 env REQUIRE_GPU=1 "$bf16/tests" "--test-case=*bits of sums in order*,add_in_order*,comm:*,ranks:*"
    check "sums in place are sums in order, and ranks agree" "exit status $(status_of tests-sums)" \
        [ "$(status_of tests-sums)" = 0 ]
    [ "$(status_of tests-sums)" = 0 ] || excerpt tests-sums 40
    multi_parity
    local name
    for name in $(awk '{ print $1 }' "$work/multi-runs" | sort -u | grep -v '^one$'); do multi_report_parity "$name"; done
    local two four
    two=$(multi_gpus 2) four=$(multi_gpus 4)
    if [ "$gpus_here" -ge 2 ]; then
        # Of one rank's time for twice the work: 0.97 of twice the speed is 0.515.
        multi_bench resident "two GPUs, resident" 0.515 --gpus "$two" --recompute none
        multi_bench streamed "two GPUs, streamed" 0.6 --gpus "$two" --layer-offloading
        multi_bench nccl "two GPUs over NCCL, resident" 0.515 --gpus "$two" --recompute none --transport nccl
        [ "$gpus_here" -ge 4 ] && multi_bench four "four GPUs, resident" 0.265 --gpus "$four" --recompute none
    else
        multi_bench resident "two ranks sharing the GPU, resident" 1.03 --gpus "$two" --recompute none --layers 8
        multi_bench streamed "two ranks sharing the GPU, streamed" 1.03 --gpus "$two" --layer-offloading --layers 8
    fi
    write_tokens
    write_config "$work/small" 256 688 6 4
    for name in throw hang kill; do multi_fault $name; done
}
