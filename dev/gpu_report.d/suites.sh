# The part `suites` of gpu_report.sh: tests, parity cases, mutation runs, bf16 against float32. Sourced, not run.

run_tests() {  # NAME BUILD [ENVIRONMENT...]
    run "tests-$1" 300 env REQUIRE_GPU=1 "${@:3}" "$2/tests"
}

report_tests() {  # NAME TITLE
    local counts
    if skipped "tests-$1"; then
        verdict "$2" skip "no time left"
        return
    fi
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$work/tests-$1.out" | tail -n 1)
    check "$2" "${counts:-no counts}, exit status $(status_of "tests-$1")" [ "$(status_of "tests-$1")" = 0 ]
    [ "$(status_of "tests-$1")" = 0 ] || excerpt "tests-$1" 60
}

# The tests must fail when a wait is missing: its marked line is deleted in a copy of the tree, where make then compiles
# one source anew.
mutate() {  # READY or FREE
    local copy=build-cuda-without-${1,,} source
    source=$(grep -l "// guard: $1\$" offload/*.cpp)
    rm -rf "$copy"
    mkdir "$copy"
    cp -a Makefile data dev kernels offload tests train "$bf16" "$copy"
    sed -i "/\/\/ guard: $1\$/d" "$copy/$source"
    run "mutate-$1" 120 make -C "$copy" -j4 BACKEND=cuda PRECISION=bf16 "BUILD=$bf16" "$bf16/tests"
    [ "$status" = 0 ] || return
    run "mutated-$1" 200 env REQUIRE_GPU=1 "$copy/$bf16/tests" \
        "--test-case=offload: what visits see*,streaming on the GPU: delays*"
    rm -rf "$copy"
}
report_mutation() {  # READY or FREE
    local title="without the wait for \`${1,,}\` the streaming tests fail"
    if skipped "mutate-$1" || skipped "mutated-$1"; then
        verdict "$title" skip "no time left"
    elif [ "$(status_of "mutate-$1")" != 0 ]; then
        verdict "$title" fail "the mutated build failed"
        excerpt "mutate-$1"
    else
        # 1: test cases failed. A crash or a time-out has another status, and proves nothing.
        check "$title" "exit status $(status_of "mutated-$1"), $(grep -c '^.*ERROR: ' "$work/mutated-$1.out") errors" \
            eval "[ '$(status_of "mutated-$1")' = 1 ] && grep -q 'ERROR: ' '$work/mutated-$1.out'"
        grep -E 'ERROR: |passed, ' "$work/mutated-$1.out" | cut -c 1-200 | sort | uniq -c | sort -rn | head -n 5 \
            > "$work/excerpt"
        code "$work/excerpt"
    fi
}

parity_case() {  # PRECISION MODE CASE, then flags
    local out=$work/parity/$1.$2.$(basename "$3")
    timeout 60 "build-cuda-$1/parity_gpt" "$3" "${@:4}" > "$out" 2>&1 < /dev/null
    echo "exit $?" >> "$out"
}

run_parity() {
    local precision case
    mkdir -p "$work/parity"
    export -f parity_case
    export work
    for precision in bf16 fp32; do
        for case in tests/fixtures/*/; do
            echo "$precision resident $case"
            echo "$precision streamed-P1-R2 $case --layer-offloading --num-prefetch 1 --num-slots 2 --recompute none"
            echo "$precision streamed-P2-R3 $case --layer-offloading --num-prefetch 2 --num-slots 3 --recompute block"
        done
    done > "$work/parity-runs"
    # shellcheck disable=SC2016
    run parity 200 xargs -a "$work/parity-runs" -P 8 -I '{}' bash -c 'parity_case $1' parity '{}'
}

# One line for a precision and a way of streaming: cases, quantities, the error nearest to its tolerance, equal bits.
report_parity() {
    local precision=$1 mode=$2 case cases=0 good=0 same=0 name bad=
    for case in tests/fixtures/*/; do
        name=$(basename "$case")
        local out=$work/parity/$precision.$mode.$name
        cases=$((cases + 1))
        if grep -q '^exit 0$' "$out" 2> /dev/null && grep -Eq '^[1-9][0-9]* passed, 0 failed$' "$out"; then
            good=$((good + 1))
        else
            bad+=" $name"
        fi
        if [ "$(sed -n 's/^bits //p' "$out" 2> /dev/null)" = \
            "$(sed -n 's/^bits //p' "$work/parity/$precision.resident.$name" 2> /dev/null)" ]; then
            same=$((same + 1))
        fi
    done
    cat "$work/parity/$precision.$mode."* >> "$log" 2> /dev/null
    local worst quantities
    quantities=$(cat "$work/parity/$precision.$mode."* 2> /dev/null | grep -Ec '^(PASS|FAIL) ')
    worst=$(cat "$work/parity/$precision.$mode."* 2> /dev/null | awk '
        /^(PASS|FAIL) / && $4 > 0 && $3 / $4 > most { most = $3 / $4; text = $2 " " $3 " of " $4 }
        END { print text }')
    local detail="$good of $cases cases, $quantities quantities, nearest to its tolerance: ${worst:-none}"
    [ "$mode" = resident ] || detail+="; $same of $cases with the resident run's bits"
    check "parity, $precision, $mode" "$detail" [ "$good" = "$cases" -a "$same" = "$cases" ]
    for name in $bad; do
        grep -Ev '^(PASS|bits)' "$work/parity/$precision.$mode.$name" 2> /dev/null | sed "s/^/$name: /" | tail -n 6 \
            > "$work/excerpt"
        code "$work/excerpt"
    done
}

# A small model from the same random start, trained on the same text in both precisions.
run_training() {
    write_tokens
    write_config "$work/small" 256 688 6 4
    local precision
    for precision in bf16 fp32; do
        run "train-$precision" 120 "build-cuda-$precision/train_gpt" --base-model "$work/small" \
            --from-scratch --adapter none --train-data "$work/data/train.bin" --output-dir "$work/small-$precision" \
            --max-steps 50 --sequence-len 256 --micro-batch-size 16 --learning-rate 1e-3 --warmup-steps 5 \
            --logging-steps 10
    done
}
report_training() {
    local precision
    if skipped train-bf16 || skipped train-fp32; then verdict "50 steps in both precisions" skip "no time left"; return; fi
    for precision in bf16 fp32; do
        # The mean of the last five steps, and the last one alone, of a run that went to its end.
        : > "$work/loss-$precision"
        [ "$(status_of "train-$precision")" = 0 ] || continue
        sed -nE 's/.*"loss":([0-9.e+-]+).*/\1/p' "$work/small-$precision/log.jsonl" 2> /dev/null | tail -n 5 |
            awk '{ sum += $1; last = $1 } END { if (NR == 5) print last, sum / 5 }' > "$work/loss-$precision"
    done
    local a am b bm
    read -r a am < "$work/loss-bf16"
    read -r b bm < "$work/loss-fp32"
    check "50 steps of a 6-layer model in bf16 end within 1% of float32's loss" \
        "step 50: ${a:-none} and ${b:-none}; mean of the last five: ${am:-none} and ${bm:-none}" \
        holds "${a:-0} > 0 && ${b:-0} > 0 && ${a:-0} / ${b:-1} < 1.01 && ${b:-0} / ${a:-1} < 1.01"
    for precision in bf16 fp32; do [ "$(status_of "train-$precision")" = 0 ] || excerpt "train-$precision"; done
}

# A build passes when it ends; its warnings are a check of their own and stand in the report with their text.
report_build() {  # PRECISION
    local name=build-$1 count
    check "the $1 build" "exit status $(status_of "$name")" [ "$(status_of "$name")" = 0 ]
    [ "$(status_of "$name")" = 0 ] || excerpt "$name" 30
    warnings_in "$work/$name.out" > "$work/warnings"
    count=$(grep -Ec '(:[0-9]+:[0-9]+: |\([0-9]+\): )warning' "$work/warnings")
    check "the $1 build without a compiler warning" "$count of them" [ "$count" = 0 ]
    [ "$count" = 0 ] || code "$work/warnings"
}
# Each warning once, with what the compiler says before and after it.
warnings_in() {
    grep -E -B2 -A6 '(:[0-9]+:[0-9]+: |\([0-9]+\): )warning' "$1" | cut -c 1-400 | awk '!/warning/ || !seen[$0]++' | head -n 80
}

part_suites() {
    say "Builds: \`make BACKEND=cuda PRECISION=bf16 BUILD=$bf16\`, likewise fp32. Tests:" \
        "\`REQUIRE_GPU=1 $bf16/tests\`; the generic path: \`SLABSTREAM_GENERIC_KERNELS=1\`. Parity:" \
        "\`$bf16/parity_gpt CASE [flags]\` over \`tests/fixtures/\`, float32 with the adapters after five steps."
    say ""
    build bf16 "$bf16" all "$bf16/tests" &
    build fp32 "$fp32" all "$fp32/tests" &
    wait
    local precision
    for precision in bf16 fp32; do report_build $precision; done
    # One GPU serves them all; nothing here looks at the time.
    run_tests bf16 "$bf16" &
    run_tests fp32 "$fp32" &
    run_tests generic "$bf16" SLABSTREAM_GENERIC_KERNELS=1 &
    wait
    report_tests bf16 "suite gpu, bf16"
    report_tests fp32 "suite gpu, float32"
    report_tests generic "suite gpu, bf16, kernels that every card has"
    run_parity
    for precision in bf16 fp32; do
        for mode in resident streamed-P1-R2 streamed-P2-R3; do report_parity $precision $mode; done
    done
    check "float32 adapters after five steps" "$(cat "$work"/parity/fp32.* | grep -c '^PASS after5') compared" \
        eval "grep -hq '^PASS after5' '$work'/parity/fp32.*"
    mutate READY &
    mutate FREE &
    run_training
    wait
    report_mutation READY
    report_mutation FREE
    report_training
}
