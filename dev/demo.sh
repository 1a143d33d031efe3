#!/bin/bash
# The demo: a small byte-level model is trained from scratch on the King James Bible until its samples read like words.
# LoRA then fine-tunes it on licence texts with its layers streamed. Every number printed is measured in this run.
#
# It takes about four minutes on two idle cores. With --short it takes under one minute, too little for words.
# TEXT=file, FINETUNE_TEXT=file: other texts, plain and in UTF-8.
# BUILD=build: where the programs are. Each run makes $BUILD/demo anew.
set -euo pipefail
cd "$(dirname "$0")/.."
. dev/demo_common.sh
out=$build/demo

base_steps=1300 lora_steps=363 eval_steps=300 log_steps=100 sample_tokens=300
case ${1:-} in
    "") ;;
    --short) base_steps=150 lora_steps=40 eval_steps=0 log_steps=15 sample_tokens=100 ;;
    *) give_up "unknown argument $1; wanted nothing or --short" ;;
esac

need_program train_gpt demo
need_program tokenize demo
rm -rf "$out"
mkdir -p "$out/base_config"

heading "1. Two texts, one byte a token"
put_text "$out/text"
licences=()
if [ -n "${FINETUNE_TEXT:-}" ]; then
    need "$FINETUNE_TEXT" FINETUNE_TEXT
    licences=("$FINETUNE_TEXT")
else
    # One of each kind: versions of one licence repeat each other, and validation would measure memory.
    for name in GPL-3 MPL-2.0 Apache-2.0 GFDL-1.3 CC0-1.0 Artistic; do
        [ -e "/usr/share/common-licenses/$name" ] || continue
        mkdir -p "$out/licences"
        sed -E 's/[ \t\f]+/ /g; s/^ //' "/usr/share/common-licenses/$name" > "$out/licences/$name" # indented in many ways
        licences+=("$out/licences/$name")
    done
    [ ${#licences[@]} -gt 0 ] || give_up "/usr/share/common-licenses has no licence texts; give FINETUNE_TEXT=file"
fi
"$build/tokenize" --output-dir "$out/text_data" --val-fraction 0.01 "$out/text"
echo
"$build/tokenize" --output-dir "$out/finetune_data" --val-fraction 0.1 "${licences[@]}"

heading "2. A base model from scratch: everything trains, everything on the device"
cat > "$out/base_config/config.json" << 'END'
{
  "model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 6,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
  "vocab_size": 260, "tie_word_embeddings": true, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "bos_token_id": 256, "eos_token_id": 256
}
END
"$build/train_gpt" --base-model "$out/base_config" --from-scratch --adapter none \
    --train-data "$out/text_data/train.bin" --val-data "$out/text_data/val.bin" --output-dir "$out/base" \
    --sequence-len 128 --micro-batch-size 8 --max-steps $base_steps --learning-rate 3e-3 --adam-beta2 0.99 \
    --weight-decay 0.05 --eval-steps $eval_steps --logging-steps $log_steps \
    --sample "And he said" --sample-tokens $sample_tokens --sample-temperature 0.6

heading "3. LoRA on another register, the frozen layers streamed through two slots"
finetune() { # output directory, steps, further flags
    "$build/train_gpt" --base-model "$out/base" --train-data "$out/finetune_data/train.bin" --output-dir "$out/$1" \
        --sequence-len 128 --micro-batch-size 8 --lora-r 16 --learning-rate 4e-3 --max-steps "$2" "${@:3}"
}
finetune finetuned $lora_steps --layer-offloading --num-slots 2 --val-data "$out/finetune_data/val.bin" \
    --logging-steps $((log_steps / 3)) --trace "$out/trace.json" --trace-steps 3:5 \
    --sample "The person who" --sample-tokens $sample_tokens --sample-temperature 0.6

heading "4. Five such steps, resident and streamed: are the adapters equal, bit by bit?"
for way in resident streamed; do
    flags=()
    if [ $way = streamed ]; then flags=(--layer-offloading --num-slots 2); fi
    finetune "five_steps_$way" 5 "${flags[@]}" | grep -E '^(step|streamed|peak)'
done
cmp "$out/five_steps_resident/adapter_model.safetensors" "$out/five_steps_streamed/adapter_model.safetensors"
echo "The two adapters are equal."

heading "5. What came of it"
log=$out/finetuned/log.jsonl
awk -v before="$(logged "$log" eval_loss head)" -v after="$(logged "$log" eval_loss tail)" \
    -v slabs="$(logged "$log" slabs_in tail)" -v layers=6 -v steps=$lora_steps 'BEGIN {
    printf "validation loss on the new text    %.3f before, %.3f after, in nats a byte\n", before, after
    printf "slabs loaded                       %d in %d steps; a layer at every visit would be %d\n",
           slabs, steps, 2 * layers * steps
}'
sed -E 's/^ +//' << END
    the adapter, as PEFT loads it      $out/finetuned/adapter_model.safetensors
    the log                            $log
    the trace of steps 3 to 5          $out/trace.json (opens in ui.perfetto.dev)
    the base model                     $out/base
    seconds in all                     $((SECONDS - began))
END
