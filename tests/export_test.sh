#!/bin/bash
# From a base known by its hub name to an adapter, and from there to a merged model. Checks the run directory's content.
# The merged model must equal base and adapter together.
#
# The argument is the build directory.
. "$(dirname "$0")/common.sh"

# A base as `hub` tools leave it: the files are links into blobs.
cache=$work/hub/models--org--tiny
mkdir -p "$cache/refs" "$cache/snapshots/0123abc" "$cache/blobs"
printf 0123abc > "$cache/refs/main"
cp "$fixtures"/llama/base/* "$cache/blobs"
echo '{"model": {"type": "BPE", "vocab": {}, "merges": []}}' > "$cache/blobs/tokenizer.json"
echo '{"eos_token_id": 2}' > "$cache/blobs/generation_config.json"
# A key that only the base's own tools know, and another type than that of weights trained in full.
sed -i -e '1s/{/{ "unheard_of": null,/' -e 's/"float32"/"bfloat16"/' "$cache/blobs/config.json"
for file in "$cache"/blobs/*; do ln -s "../../blobs/${file##*/}" "$cache/snapshots/0123abc/${file##*/}"; done
export HF_HUB_CACHE=$work/hub

for ((i = 0; i < 40; i++)); do echo "$i apples and $((3 * i)) pears make $((4 * i)) fruits."; done > "$work/text"
require 0 "$build/tokenize" --output-dir "$work/data" --val-fraction 0.3 "$work/text"
data=(--train-data "$work/data/train.bin" --val-data "$work/data/val.bin" --sequence-len 32)
require 0 "$build/train_gpt" --base-model org/tiny "${data[@]}" --output-dir "$work/run" --max-steps 4 --lora-r 2 \
    --learning-rate 0.02
same_bits "the tokenizer beside the adapter" "$cache/blobs/tokenizer.json" "$work/run/tokenizer.json"
holds "the base keeps its name" grep -q '"base_model_name_or_path": "org/tiny"' "$work/run/adapter_config.json"
refuses "a name that was never fetched" 'hf download org/other' "$build/train_gpt" --base-model org/other --plan

export_gpt() { "$build/export_gpt" --base-model org/tiny --adapter "$work/run" "$@"; }
require 0 export_gpt --merge "$work/merged" --gguf-adapter "$work/adapter.gguf"
prints "what was written" "wrote .*merged: .* of weights in 1 file.* tensors merged; with tokenizer.json, generation_config.json"
for file in config.json tokenizer.json generation_config.json; do
    same_bits "$file of the merged model" "$cache/blobs/$file" "$work/merged/$file"
done
holds "a GGUF file" [ "$(head -c 4 "$work/adapter.gguf")" = GGUF ]
refuses "an output that is there" "not empty" export_gpt --merge "$work/merged"
refuses "no adapter" "adapter_config.json" "$build/export_gpt" --base-model org/tiny --adapter "$work/data" --merge "$work/x"
holds "nothing is left of what was refused" [ ! -e "$work/x" ]

# A model trained in full keeps the base's config.json, except the type, and the base's files beside it.
require 0 "$build/train_gpt" --base-model org/tiny "${data[@]}" --output-dir "$work/full" --adapter none --max-steps 2
for directory in "$work/full" "$work/full/checkpoint-2"; do
    for file in tokenizer.json generation_config.json; do
        same_bits "$file of the model trained in full" "$cache/blobs/$file" "$directory/$file"
    done
    holds "config.json keeps the base's keys" [ "$(tr -d ' \n' < "$directory/config.json")" = \
        "$(tr -d ' \n' < "$cache/blobs/config.json" | sed -E 's/("(torch_)?dtype"):"[a-z0-9]*"/\1:"float32"/')" ]
done

# The merged model begins where base and adapter ended.
require 0 "$build/train_gpt" --base-model "$work/merged" "${data[@]}" --output-dir "$work/again" --max-steps 1 --lora-r 1
ended=$(eval_losses_of "$work/run/log.jsonl" | sed -n 's/^4 eval //p')
began=$(eval_losses_of "$work/again/log.jsonl" | sed -n 's/^0 eval //p')
first=$(eval_losses_of "$work/run/log.jsonl" | sed -n 's/^0 eval //p')
near() { awk -v a="$1" -v b="$2" -v e="$3" 'BEGIN { d = a - b; exit !(d < e && d > -e) }'; }
far() { ! near "$@"; }
tolerance=1e-5
grep -q SLABSTREAM_BF16 "$build/flags" && tolerance=2e-2
holds "merged begins at $began, base and adapter ended at $ended" near "$began" "$ended" $tolerance
holds "the adapter moves the loss from $first to $ended only" far "$first" "$ended" 0.05
holds "no leftovers" no_leftovers "$work"
finish
