# The part `sanitizer` of gpu_report.sh: compute-sanitizer over short training runs with streaming. Sourced, not run.
#
# Three programs, so that every kernel is seen: a fresh model whose head size takes Hopper's own attention, which also
# samples, the same on the kernels that every card has, and a GPT-2 case (LayerNorm, GELU, biases). initcheck runs the
# first in float32, where it has no other kernels: on Hopper the matrix library's larger bf16 products write through the
# copy engine, which initcheck does not see, and every reader of theirs would be reported. racecheck takes
# a minute or more a step, so it gets one step and no sample; told to look at our own kernels alone (--kernel-name) it breaks off.
programs_of() {  # TOOL
    case $1 in
        initcheck) echo llama gpt2 ;;
        *) echo llama llama-generic gpt2 ;;
    esac
}

sanitizer_program() {  # PROGRAM TOOL: the command of a program, as words in $command
    local build=$bf16 length=(--max-steps 2 --sample "In the" --sample-tokens 6)
    [ "$2" = initcheck ] && build=$fp32
    [ "$2" = racecheck ] && length=(--max-steps 1)
    local train=("$build/train_gpt" --base-model "$work/tiny" --from-scratch --train-data "$work/data/train.bin"
        --sequence-len 160 --micro-batch-size 1 --lora-r 8 --lora-dropout 0.1 --layer-offloading --num-slots 2
        "${length[@]}" --output-dir "$work/run-$2-$1")
    case $1 in
        llama) command=("${train[@]}") ;;
        llama-generic) command=(env SLABSTREAM_GENERIC_KERNELS=1 "${train[@]}") ;;
        gpt2) command=("$bf16/parity_gpt" tests/fixtures/gpt2 --layer-offloading --num-slots 2) ;;
    esac
}

sanitize() {  # TOOL PROGRAM
    local options=(--tool "$1" --error-exitcode 9 --print-limit 20 --target-processes all)
    sanitizer_program "$2" "$1"
    run "$1-$2" 400 "$sanitizer" "${options[@]}" "${command[@]}"
}

report_sanitizer() {  # TOOL PROGRAM
    local name=$1-$2 summary
    if skipped "$name"; then
        verdict "$1, $2" skip "no time left"
        return
    fi
    summary=$(grep -E '(ERROR|RACECHECK) SUMMARY' "$work/$name.out" | sed 's/^=* *//' | tr '\n' ';' | sed 's/;$//')
    check "$1, $2" "${summary:-no summary}, exit status $(status_of "$name")" \
        eval "[ '$(status_of "$name")' = 0 ] && [ -n '$summary' ]"
    if [ "$(status_of "$name")" != 0 ]; then
        grep -E '^=========' "$work/$name.out" | head -n 14 | cut -c 1-200 > "$work/excerpt"
        [ -s "$work/excerpt" ] || tail -n 10 "$work/$name.out" > "$work/excerpt"
        code "$work/excerpt"
    fi
}

part_sanitizer() {
    sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
    say "llama: \`train_gpt --from-scratch --layer-offloading --num-slots 2 --lora-dropout 0.1 --max-steps 2\`," \
        "3 layers of hidden size 128 with heads of 64, T 160; generic: with \`SLABSTREAM_GENERIC_KERNELS=1\`; gpt2:" \
        "\`parity_gpt tests/fixtures/gpt2 --layer-offloading --num-slots 2\`. In bf16, but llama under initcheck in" \
        "float32, since on Hopper it does not see what large bf16 matrix products write, and one step under racecheck."
    say ""
    build bf16 "$bf16" "$bf16/train_gpt" "$bf16/parity_gpt" "$bf16/tokenize" &
    build fp32 "$fp32" "$fp32/train_gpt" &
    wait
    check "the builds" "exit status $(status_of build-bf16), $(status_of build-fp32)" \
        [ "$(status_of build-bf16)$(status_of build-fp32)" = 00 ]
    if [ ! -x "$sanitizer" ]; then
        verdict "compute-sanitizer" skip "it is not installed here"
        return
    fi
    write_tokens
    write_config "$work/tiny" 128 352 3 2
    local tool program
    # Without the tool first: a failure then is not the tool's.
    sanitizer_program llama plain
    run plain 60 "${command[@]}"
    check "the run by itself" "exit status $status" [ "$status" = 0 ]
    [ "$status" = 0 ] || excerpt plain
    for tool in memcheck racecheck initcheck synccheck; do
        for program in $(programs_of "$tool"); do
            while [ "$(jobs -rp | wc -l)" -ge 6 ]; do wait -n; done
            sanitize "$tool" "$program" &
        done
    done
    wait
    for tool in memcheck racecheck initcheck synccheck; do
        for program in $(programs_of "$tool"); do report_sanitizer "$tool" "$program"; done
    done
}
