#!/bin/bash
# A GGUF file as --base-model: the same bits as from the Hugging Face directory of the same weights, the plan's sizes, and
# refusals.
#
# The argument is the build directory.
. "$(dirname "$0")/common.sh"

models=$PWD/tests/gguf
{ # a token file in llm.c's format: magic 20240520, version 1, 512 tokens below 20
    printf '%b' '\x88\xd8\x34\x01\x01\x00\x00\x00\x00\x02\x00\x00'
    head -c 1012 /dev/zero
    for ((i = 0; i < 512; i++)); do printf '%b' "\\x$(printf %02x $((i * i % 19)))\\x00"; done
} > "$work/train.bin"

# Trains base $1 into $work/$2, with further flags.
train() {
    "$build/train_gpt" --base-model "$1" --train-data "$work/train.bin" --output-dir "$work/$2" --sequence-len 16 \
        --micro-batch-size 2 --max-steps 3 --learning-rate 0.01 "${@:3}"
}

for name in llama llama3 llama_mixed qwen2 qwen3 gpt2; do
    for flags in "--lora-r 2 --layer-offloading" "--adapter none"; do
        # shellcheck disable=SC2086
        require 0 train "$models/$name/model.gguf" gguf $flags
        # shellcheck disable=SC2086
        require 0 train "$models/$name" directory $flags
        file=adapter_model.safetensors
        [ "$flags" = "--adapter none" ] && file=model.safetensors
        same_bits "$name $flags" "$work/gguf/$file" "$work/directory/$file"
        if [ "$flags" = "--adapter none" ]; then  # a config.json of ours, and the base's own, say the same
            for base in gguf directory; do
                require 0 "$build/train_gpt" --base-model "$work/$base" --sequence-len 16 --plan
                # Except for the note of dropout, which GGUF lacks, and the GPU's free memory at the moment.
                grep -v -e '^note:' -e '^ *budget' "$output" > "$work/plan_$base"
            done
            same_bits "$name: the plans of both models" "$work/plan_gguf" "$work/plan_directory"
        fi
        rm -rf "$work/gguf" "$work/directory"
    done
done

require 0 "$build/train_gpt" --base-model "$models/llama_mixed/model.gguf" --plan
prints "the plan" 'model\.gguf: .* on disk \(F16, .*Q4_1.*\), .* decoded to [a-z0-9]+ in host memory'

# Exports replace nothing that was there, least of all their own base.
cp "$models/llama/model.gguf" "$work/base.gguf"
require 0 train "$work/base.gguf" run --lora-r 2
refuses "an adapter over its base" "base.gguf: exists, and would be replaced; wanted a new file" \
    "$build/export_gpt" --base-model "$work/base.gguf" --adapter "$work/run" --gguf-adapter "$work/base.gguf"
refuses "logits over their base" "base.gguf: exists, and would be replaced" \
    "$build/logits_gpt" "$work/base.gguf" "$work/train.bin" "$work/base.gguf"
refuses "logits over their tokens" "train.bin: exists, and would be replaced" \
    "$build/logits_gpt" "$work/base.gguf" "$work/train.bin" "$work/train.bin"
same_bits "the base" "$models/llama/model.gguf" "$work/base.gguf"

head -c 4000 "$models/llama/model.gguf" > "$work/cut.gguf"
refuses "a file cut short" "cut\.gguf.*cut short" "$build/train_gpt" --base-model "$work/cut.gguf" --plan
sed 's/llama/other/g' "$models/llama/model.gguf" > "$work/other.gguf"
refuses "another architecture" '"general.architecture" is "other"; wanted "llama"' \
    "$build/train_gpt" --base-model "$work/other.gguf" --plan
mkdir "$work/directory"
cp "$models/llama/config.json" "$work/other.gguf" "$work/directory"
refuses "a directory with a GGUF file" "give that file instead" train "$work/directory" none
finish
