# The part `pictures` of gpu_report.sh: the runs that docs/loss.png and docs/timeline.png show. Sourced, not run.
#
# A base of a known model's shape, with bytes for tokens, is trained from scratch on the King James Bible. Published
# weights would have to be downloaded. LoRA then fine-tunes the base on this project's sources, streamed and resident.
# Logs and the trace stay in build/gpu_report/pictures/; dev/plot_run.py draws from them.
#
# TEXT=file: the Bible, where Debian's bible-kjv is not installed.
# PICTURES_MODEL=gpt2-xl, llama-3.2-1b (fewer boxes in the timeline) or tiny (a test).
# PICTURES_SECONDS=240: the time for all of it, the build apart.

pictures_model=${PICTURES_MODEL:-gpt2-xl}
pictures_out=$dir/pictures

# Writes config.json into a directory and sets what suits the model's size.
pictures_shape() {
    base_rows=16 base_row_tokens=512 base_steps=250 rows=8 row_tokens=1024 steps=100 traced=60:61 eval_rows=16 eval_steps=25
    base_rate=3e-4 rate=5e-4
    local llama='"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "hidden_act": "silu",
 "rope_theta": 500000.0, "max_position_embeddings": 4096, "tie_word_embeddings": true, "vocab_size": 260'
    case $pictures_model in
        gpt2-xl)
            pictures_title="GPT-2 XL's shape"
            config='"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 1600, "n_layer": 48, "n_head": 25,
 "n_positions": 1024, "vocab_size": 260, "activation_function": "gelu_new"'
            ;;
        llama-3.2-1b)
            pictures_title="Llama-3.2-1B's shape"
            config="$llama"', "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64'
            ;;
        tiny)
            pictures_title="A tiny model"
            base_rows=4 base_row_tokens=64 base_steps=30 rows=2 row_tokens=64 steps=12 traced=6:7 eval_rows=4 eval_steps=4
            base_rate=3e-3 rate=3e-3
            config="$llama"', "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 6,
 "num_attention_heads": 4, "num_key_value_heads": 2'
            ;;
        *) return 1 ;;
    esac
    mkdir -p "$1" && echo "{$config, \"bos_token_id\": 256, \"eos_token_id\": 256}" > "$1/config.json"
}

# The text the base learns: $work/bible.txt, or status 1.
pictures_text() {
    if [ -s "${TEXT:-}" ]; then
        cp "$TEXT" "$work/bible.txt"
    elif command -v bible > /dev/null; then
        # Each verse comes as a line "Ge1:1 In the beginning ...".
        bible -f Gen1:1-Rev22:21 | sed -E 's/^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ //' > "$work/bible.txt"
    else
        return 1
    fi
}

finetune() {  # streamed|resident, then flags
    run "pictures-$1" 70 "$bf16/train_gpt" --base-model "$pictures_base" --train-data "$work/sources.txt" \
        --val-set-size $eval_rows --sequence-len $row_tokens --micro-batch-size $rows --max-steps $steps --lora-r 16 \
        --learning-rate $rate --recompute block --eval-steps $eval_steps --logging-steps 10 \
        --output-dir "$work/pictures/$1" "${@:2}"
    mkdir -p "$pictures_out/$1"
    cp "$work/pictures/$1/log.jsonl" "$pictures_out/$1/" 2> /dev/null
}

pictures_draw() {
    local last=${traced#*:}
    local title="$pictures_title: streamed and resident"
    if ! python3 -c 'import matplotlib' > /dev/null 2>&1; then
        say ""
        say "No matplotlib here. To draw from the copied logs:"
        say ""
        say '```'
        say "dev/plot_run.py runs $pictures_out/streamed $pictures_out/resident --smooth 5 --title \"$title\" -o docs/loss.png"
        say "dev/plot_run.py trace $pictures_out/trace.json --step $last -o docs/timeline.png"
        say '```'
        return
    fi
    run draw-loss 60 python3 dev/plot_run.py runs "$pictures_out/streamed" "$pictures_out/resident" --smooth 5 \
        --title "$title" -o "$pictures_out/loss.png"
    run draw-timeline 60 python3 dev/plot_run.py trace "$pictures_out/trace.json" --step "$last" \
        -o "$pictures_out/timeline.png"
    check "the pictures" "$pictures_out/loss.png, $pictures_out/timeline.png; docs/ gets them by hand" \
        [ -s "$pictures_out/loss.png" -a -s "$pictures_out/timeline.png" ]
}

part_pictures() {
    build bf16 "$bf16" "$bf16/train_gpt"
    check "the build" "exit status $status" [ "$status" = 0 ]
    part_start=$SECONDS
    local limit_s=${PICTURES_SECONDS:-240}
    if ! pictures_shape "$work/shape"; then
        verdict "pictures" fail "PICTURES_MODEL=$pictures_model; wanted gpt2-xl, llama-3.2-1b or tiny"
        return
    elif ! pictures_text; then
        verdict "pictures" skip "no text: neither TEXT=file nor the program bible of bible-kjv"
        return
    fi
    rm -rf "$pictures_out" && mkdir -p "$pictures_out"
    find kernels offload train data -name '*.h' -o -name '*.cpp' -o -name '*.cu' | LC_ALL=C sort | xargs cat > "$work/sources.txt"
    pictures_base=$work/base
    # The trained base and its optimizer's state: 24 GB for GPT-2 XL's shape, in memory where there is room.
    if [ "$(df --output=avail -B1G /dev/shm 2> /dev/null | tail -n 1)" -ge 40 ] 2> /dev/null; then
        pictures_base=$memory_base
    fi
    run pictures-base 120 "$bf16/train_gpt" --base-model "$work/shape" --from-scratch --adapter none \
        --train-data "$work/bible.txt" --sequence-len $base_row_tokens --micro-batch-size $base_rows \
        --max-steps $base_steps --learning-rate $base_rate --warmup-steps $((base_steps / 8)) --adam-beta2 0.95 \
        --logging-steps 25 --output-dir "$pictures_base"
    rm -rf "$pictures_base"/checkpoint-*
    if [ "$status" != 0 ]; then
        if [ "$status" = skip ]; then verdict "the base" skip "no time left"; else verdict "the base" fail "exit status $status"; fi
        excerpt pictures-base
        return
    fi
    finetune streamed --layer-offloading --num-slots 2 --trace "$pictures_out/trace.json" --trace-steps $traced
    finetune resident
    say ""
    say "$pictures_title with bytes for tokens: \`train_gpt --from-scratch --adapter none\`, $base_steps steps of" \
        "$((base_rows * base_row_tokens)) bytes of the King James Bible. Then LoRA, r 16, on this project's sources," \
        "\`--recompute block\`, $steps steps of $((rows * row_tokens)) bytes, streamed (\`--layer-offloading --num-slots 2\`) and resident."
    say ""
    say '```'
    grep -E '^(llama|gpt2), ' "$work/pictures-base.out" | head -n 1 >> "$section"
    grep -E '^step ' "$work/pictures-base.out" | tail -n 1 >> "$section"
    local way
    for way in streamed resident; do
        grep -E '^(eval|step [0-9]*0/|peak)' "$work/pictures-$way.out" | sed "s/^/$way: /" | cut -c 1-220 > "$work/lines"
        { head -n 1 "$work/lines"; tail -n 3 "$work/lines"; } >> "$section"
    done
    say '```'
    say ""
    local good=0
    [ "$(status_of pictures-streamed)$(status_of pictures-resident)" = 00 ] && good=1
    check "both runs ended" "exit status $(status_of pictures-streamed), $(status_of pictures-resident)" [ $good = 1 ]
    for way in streamed resident; do [ "$(status_of pictures-$way)" = 0 ] || excerpt "pictures-$way"; done
    [ $good = 1 ] || return
    check "the streamed adapter is the resident one, bit for bit" "$steps steps" \
        cmp -s "$work"/pictures/{streamed,resident}/adapter_model.safetensors
    pictures_draw
}
