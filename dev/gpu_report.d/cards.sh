# The part `cards` of gpu_report.sh: models that people use, within the memory of cards that people have. Sourced, not run.
#
# A row is a model's shape within a budget that `--vram-budget` enforces. B is the largest power of two whose plan fits,
# at most CARDS_MOST_ROWS; the ring takes the rest of the budget. The resident run has the same B and --recompute, no
# budget, and must end with the same adapter. The card's compute and link are this machine's, only its memory is not.
# Weights repeat random numbers. The build apart, the part keeps to CARDS_SECONDS; rows that no longer fit are left out.

# name hidden intermediate layers heads kv-heads vocabulary tied|untied; the most wanted rows come first
cards_models=${CARDS_MODELS:-"Llama-2-7B 4096 11008 32 32 32 32000 untied
Llama-3-8B 4096 14336 32 32 8 128256 untied
Llama-3.2-3B 3072 8192 28 24 8 128256 tied"}
cards_budgets=${CARDS_BUDGETS:-12G 8G 16G 24G}
cards_most_rows=${CARDS_MOST_ROWS:-8}
cards_tokens=${CARDS_SEQUENCE_LEN:-2048}
cards_steps=4  # the first is not timed

cards_train() {  # NAME SECONDS FLAGS...: into $work/cards/NAME
    run "cards-$1" "$2" "$bf16/train_gpt" --base-model "$cards_base" --train-data "$work/data/train.bin" \
        --sequence-len "$cards_tokens" --recompute block --max-steps $cards_steps --output-dir "$work/cards/$1" "${@:3}"
}
cards_streamed_flags() { echo "--layer-offloading --num-slots auto --vram-budget $1 --micro-batch-size $2"; }

# fitting_B: the largest B whose streamed plan fits, for BUDGET MOST; empty when none does or no time is left.
cards_batch() {
    local B=$2
    fitting_B=
    while [ "$B" -ge 1 ]; do
        # shellcheck disable=SC2046
        run cards-plan 20 "$bf16/train_gpt" --base-model "$cards_base" --sequence-len "$cards_tokens" \
            --recompute block --plan $(cards_streamed_flags "$1" "$B")
        [ "$status" = skip ] && return
        [ "$status" = 0 ] && fitting_B=$B && return
        B=$((B / 2))
    done
}

# Tokens a second over the timed steps, and the share of their time that compute waited, of a log.
cards_speed() {
    grep '"step_seconds"' "$1" | tr -d '"{}' | awk -F'[,:]' '
        { for (i = 1; i < NF; i += 2) value[$i] = $(i + 1) }
        value["step"] > 1 { tokens += value["tokens"]; seconds += value["step_seconds"]
                            wait += value["waiting"] * value["step_seconds"] }
        END { if (seconds > 0) printf "%.0f %.1f%%\n", tokens / seconds, 100 * wait / seconds }'
}
cards_field() { sed -nE "s/.*\"$2\":([0-9]+).*/\1/p" "$1" 2> /dev/null | tail -n 1; }  # LOG NAME
gib() { awk "BEGIN { printf \"%.2f GiB\", ${1:-0} / 2^30 }"; }

cards_row() {  # MODEL BUDGET B: the streamed run beside the resident one of that B, which is there
    local name=$1-$2 resident=$work/cards/$1-resident-B$3 streamed streamed_log resident_log speed resident_speed
    # shellcheck disable=SC2046
    cards_train "$name" 60 $(cards_streamed_flags "$2" "$3")
    streamed=$work/cards/$name streamed_log=$streamed/log.jsonl resident_log=$resident/log.jsonl
    if skipped "cards-$name"; then
        verdict "$1 within $2" skip "no time left"
        return
    elif [ "$(status_of "cards-$name")" != 0 ] || [ ! -s "$resident_log" ]; then
        verdict "$1 within $2" fail "exit status $(status_of "cards-$name")"
        excerpt "cards-$name"
        return
    fi
    speed=$(cards_speed "$streamed_log") resident_speed=$(cards_speed "$resident_log")
    echo "| $1 | $2 | $3 | $(cards_field "$streamed_log" slots) | $(gib "$(cards_field "$resident_log" planned_device_bytes)") |" \
        "$(gib "$(cards_field "$streamed_log" device_peak_bytes)") | ${resident_speed% *} | ${speed% *} |" \
        "$(awk "BEGIN { printf \"%.0f%%\", 100 * ${speed% *} / ${resident_speed% *} }") | ${speed#* } |" >> "$work/cards-table"
    check "$1 within $2: the streamed adapter is the resident one, bit for bit" \
        "$cards_steps steps, B $3" cmp -s "$streamed/adapter_model.safetensors" "$resident/adapter_model.safetensors"
}

cards_model() {  # NAME and the shape
    local name=$1 budget tied=() B previous=$cards_most_rows
    [ "$8" = tied ] && tied=(--tied)
    run "cards-base" 60 python3 dev/gpu_report.d/make_base.py "$cards_base" --hidden "$2" --intermediate "$3" \
        --layers "$4" --heads "$5" --kv-heads "$6" --vocab "$7" "${tied[@]}"
    if [ "$status" != 0 ]; then
        if [ "$status" = skip ]; then
            verdict "$name" skip "no time left"
        else
            verdict "$name" fail "its files could not be written"
            excerpt cards-base
        fi
        return
    fi
    local -A batch=()
    # From the largest budget down: a smaller one never holds more.
    for budget in $(tr ' ' '\n' <<< "$cards_budgets" | sort -rh); do
        cards_batch "$budget" "$previous"
        batch[$budget]=$fitting_B previous=${fitting_B:-1}
    done
    for budget in $cards_budgets; do
        B=${batch[$budget]}
        if [ -z "$B" ]; then
            verdict "$name within $budget" skip "no plan fits, or no time was left to try"
            continue
        fi
        [ -e "$work/cards/$name-resident-B$B" ] || cards_train "$name-resident-B$B" 60 --micro-batch-size "$B"
        cards_row "$name" "$budget" "$B"
    done
    rm -rf "$cards_base"
}

part_cards() {
    build bf16 "$bf16" "$bf16/train_gpt" "$bf16/tokenize"
    check "the build" "exit status $status" [ "$status" = 0 ]
    part_start=$SECONDS
    local limit_s=${CARDS_SECONDS:-235}
    cards_base=$work/base
    # Files in memory where there is room: loading then costs seconds.
    if [ "$(df --output=avail -B1G /dev/shm 2> /dev/null | tail -n 1)" -ge 20 ] 2> /dev/null; then
        cards_base=$memory_base
    fi
    write_tokens
    say ""
    say "\`$bf16/train_gpt --layer-offloading --num-slots auto --vram-budget BUDGET --micro-batch-size B" \
        "--recompute block\`, T $cards_tokens, LoRA r 16 on all linear layers, $((cards_steps - 1)) timed steps; resident:" \
        "the same without the budget and --layer-offloading. B: the largest power of two that fits, at most" \
        "$cards_most_rows. R: the slots that the budget holds. Budgets and memory include the driver. Compute and link" \
        "are this machine's: a smaller card is slower, and its link mostly is, too."
    say ""
    : > "$work/cards-table"
    local outer=$section
    section=$work/cards-verdicts
    : > "$section"
    while read -r -a model; do cards_model "${model[@]}"; done <<< "$cards_models"
    section=$outer
    say "| model's shape | budget | B | R | resident, planned | streamed, peak | tok/s resident | tok/s streamed |" \
        "share of resident speed | waiting |"
    say "|---|---|---|---|---|---|---|---|---|---|"
    cat "$work/cards-table" >> "$section"
    say ""
    cat "$work/cards-verdicts" >> "$section"
}
