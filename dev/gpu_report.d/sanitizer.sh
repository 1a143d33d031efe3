# The part `sanitizer` of gpu_report.sh: compute-sanitizer over short training runs with streaming and over the kernels'
# own tests. Sourced, not run.
#
# The program llama is a fresh model whose head size takes Hopper's own attention; it samples, too. The program
# llama-generic is the same on the kernels that every card has. The program blocks trains a GGUF file as it is. The
# program gpt2 is a GPT-2 case (LayerNorm, GELU, biases), qwen3 is Qwen3 trained in full. The tests "kernels" are every
# kernel at odd sizes, "attention" every head size.
#
# initcheck runs llama in float32, and no tests. On Hopper the matrix library's larger bf16 products write through the
# copy engine. This is invisible to initcheck, which would report every reader of those products.
# racecheck takes a minute or more a step, so it gets one step and no sample. Restricted to our own kernels
# (--kernel-name) it breaks off. So its reports on the matrix library's kernels are told apart here.

kernel_tests='*test_kernels_gpu.cpp,*test_matmul_gpu.cpp,*test_loss_optimizer_gpu.cpp,*test_attention_cached_gpu.cpp'

# GPU_REPORT_PROGRAMS="attention" runs these programs alone. Their lines replace those of an earlier section of the same
# sources, as after a mended test.
programs_of() {  # TOOL
    local program all="llama llama-generic blocks gpt2 qwen3 kernels attention"
    [ "$1" = initcheck ] && all="llama gpt2"
    for program in $all; do
        case " ${GPU_REPORT_PROGRAMS:-$all} " in *" $program "*) echo "$program" ;; esac
    done
}

# Replaces verdicts of the whole section by those of the new one.
replace_verdicts() {  # WHOLE_SECTION NEW_SECTION
    awk -v again="run again $(date -u '+%Y-%m-%d %H:%M') UTC" '
        { key = $0; sub(/^- [^:]*: /, "", key); sub(/ \(.*/, "", key) }
        NR == FNR { if (/^- .*(check), /) new[key] = $0; next }
        FNR != NR && /^```/ && skipping { in_code = !in_code; if (!in_code) skipping = 0; next }
        skipping && in_code { next }
        { skipping = 0 }
        key in new { print new[key] "; " again; skipping = 1; next }
        { print }' "$2" "$1" > "$1.new" && mv "$1.new" "$1"
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
        blocks) command=("$build/train_gpt" --base-model "$work/blocks.gguf" --train-data "$work/data/train.bin"
            --sequence-len 160 --lora-r 8 --layer-offloading --num-slots 2 --max-steps 1
            --output-dir "$work/run-$2-$1") ;;
        llama-generic) command=(env SLABSTREAM_GENERIC_KERNELS=1 "${train[@]}") ;;
        gpt2) command=("$bf16/parity_gpt" tests/fixtures/gpt2 --layer-offloading --num-slots 2) ;;
        qwen3) command=("$bf16/parity_gpt" tests/fixtures/full_qwen3_freeze1 --layer-offloading --num-slots 2) ;;
        kernels) command=("$bf16/tests" -ts=gpu -sf="$kernel_tests") ;;
        attention) command=("$bf16/tests" -ts=gpu "-sf=*test_attention_gpu.cpp") ;;
    esac
}

sanitize() {  # TOOL PROGRAM
    local options=(--tool "$1" --error-exitcode 9 --print-limit 100 --target-processes all)
    sanitizer_program "$2" "$1"
    run "$1-$2" 400 "$sanitizer" "${options[@]}" "${command[@]}"
}

# The number of a report's accesses in kernels of the matrix library, or in our own.
races() {  # NAME library|own
    grep -E '^=+ +(Error: Race reported between|and) .*(Read|Write) access' "$work/$1.out" |
        grep -c"$([ "$2" = library ] || echo v)" ' at nvjet_'
}
report_sanitizer() {  # TOOL PROGRAM
    local name=$1-$2 summary good=no
    if skipped "$name"; then
        verdict "$1, $2" skip "no time left"
        return
    fi
    summary=$(grep -E '(ERROR|RACECHECK) SUMMARY' "$work/$name.out" | sed 's/^=* *//' | tr '\n' ';' | sed 's/;$//')
    if [ -n "$summary" ] && [ "$(status_of "$name")" = 0 ]; then
        good=yes
    elif [ "$1" = racecheck ] && [ -n "$summary" ] && [ "$(status_of "$name")" = 9 ] &&
        [ "$(races "$name" library)" -gt 0 ] && [ "$(races "$name" own)" = 0 ]; then
        good=yes summary+=", all of them within kernels of the matrix library (nvjet)"
    fi
    check "$1, $2" "${summary:-no summary}, exit status $(status_of "$name")" [ "$good" = yes ]
    [ "$good" = yes ] || explain_failure "$name"
}
# What the tool reports, and what the program itself says: with no error of the tool's, the program is what failed.
explain_failure() {  # NAME
    if grep -Eq '(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)' "$work/$1.out"; then
        say "  The tool reports no error; the program itself ended with status $(status_of "$1"):"
        {
            grep -E '(ERROR|FATAL|FAIL|error:|passed, |threw|what\(\))' "$work/$1.out"
            grep -E '^=========.*(Target application|Internal|out of memory)' "$work/$1.out"
        } | head -n 20 | cut -c 1-300 > "$work/excerpt"
        [ -s "$work/excerpt" ] || grep -v '^$' "$work/$1.out" | tail -n 15 | cut -c 1-300 > "$work/excerpt"
    else
        grep -E '^=========' "$work/$1.out" | head -n 24 | cut -c 1-200 > "$work/excerpt"
        [ -s "$work/excerpt" ] || tail -n 10 "$work/$1.out" > "$work/excerpt"
    fi
    code "$work/excerpt"
}

part_sanitizer() {
    local whole=
    if [ -n "${GPU_REPORT_PROGRAMS:-}" ]; then
        whole=$dir/sanitizer.whole.md
        if ! grep -qs "$hash" "$whole"; then
            [ ! -s "$whole" ] || mv "$whole" "$section"
            verdict "programs alone" fail "there is no section of these sources to put them into"
            return
        fi
    fi
    sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
    say "llama: \`train_gpt --from-scratch --layer-offloading --num-slots 2 --lora-dropout 0.1 --max-steps 2\`," \
        "3 layers of hidden size 128 with heads of 64, T 160; generic: with \`SLABSTREAM_GENERIC_KERNELS=1\`;" \
        "blocks: a GGUF file of Q4_K and Q6_K, \`--layer-offloading\`; gpt2:" \
        "\`parity_gpt tests/fixtures/gpt2 --layer-offloading --num-slots 2\`; qwen3: the same of" \
        "\`full_qwen3_freeze1\`; kernels, attention: their tests of suite gpu. In bf16, but llama under initcheck in" \
        "float32, since on Hopper it does not see what large bf16 matrix products write, and one step under racecheck."
    say ""
    build bf16 "$bf16" "$bf16/train_gpt" "$bf16/parity_gpt" "$bf16/tokenize" "$bf16/tests" &
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
    run make-blocks 20 python3 dev/gpu_report.d/make_blocks.py "$work/blocks.gguf" --layers 3 --hidden 256 \
        --intermediate 512 --heads 4 --vocab 260
    local tool program
    # Without the tool first: a failure here is not the tool's.
    sanitizer_program llama plain
    run plain 60 "${command[@]}"
    check "the run by itself" "exit status $status" [ "$status" = 0 ]
    [ "$status" = 0 ] || excerpt plain
    # racecheck held 56 GB of the host's memory for one run; with several at once the system killed one.
    for program in $(programs_of racecheck); do sanitize racecheck "$program"; done &
    for tool in memcheck initcheck synccheck; do
        for program in $(programs_of "$tool"); do
            while [ "$(jobs -rp | wc -l)" -ge 6 ]; do wait -n; done
            sanitize "$tool" "$program" &
        done
    done
    wait
    for tool in memcheck racecheck initcheck synccheck; do
        for program in $(programs_of "$tool"); do report_sanitizer "$tool" "$program"; done
    done
    if [ -n "$whole" ]; then
        replace_verdicts "$whole" "$section"
        mv "$whole" "$section"
    fi
}
