#!/bin/bash
# Every case of tests/fixtures against transformers + PEFT, resident and streamed in every way: all prefetch depths P and
# slots R with 1 <= P < R <= N, recomputing and not. Each run must pass, and give the resident run's bits.
#
# The argument is the build directory.
. "$(dirname "$0")/common.sh"

# A budget that is ample, but not the default. On a GPU the driver takes its share of it.
budget=16M
on_cuda && budget=1G

# One line a run: the case, then flags. A case that freezes K layers streams only those; R beyond that is no new run.
list_runs() {
    local case name N frozen P R recompute
    for case in "$fixtures"/*/; do
        name=$(basename "$case")
        N=$(layers_of "$case")
        frozen=$(sed -nE 's/.*"freeze_layers": *([0-9]+).*/\1/p' "$case/expected.json")
        if [ ! -d "$case/adapter" ]; then N=${frozen:-0}; fi
        for recompute in none block; do
            echo "$name --recompute $recompute"
            for ((R = 2; R <= N; R++)); do
                for ((P = 1; P < R; P++)); do
                    echo "$name --recompute $recompute --layer-offloading --num-prefetch $P --num-slots $R"
                done
            done
            # Nothing to stream, or a ring that holds every layer: allowed, and changes nothing either.
            if [ "$N" -le 1 ]; then echo "$name --recompute $recompute --layer-offloading"; fi
        done
    done
    for flags in "--resident-layers 1" "--resident-layers 0,2" "--resident-layers 8" "--num-slots 20 --num-prefetch 9" \
        "--num-slots auto --vram-budget $budget" "--num-slots auto" "--num-slots 3 --resident-layers 3,4 --threads 1"; do
        echo "llama_8layers --layer-offloading $flags"
    done
}

run_case() {  # arguments: the number of the run, the case, flags
    local log=$work/$1
    "$build/parity_gpt" "$fixtures/$2" "${@:3}" > "$log" 2>&1
    echo "exit $?" >> "$log"
}
export -f run_case
export build fixtures work

list_runs > "$work/runs"
xargs -P "$(nproc)" -I '{}' bash -c 'run_case {}' < <(nl -w 1 -s ' ' "$work/runs")

number=0
declare -A resident_bits
while read -r name flags; do
    number=$((number + 1))
    log=$work/$number
    bits=$(sed -n 's/^bits //p' "$log")
    : "${resident_bits[$name]=$bits}"  # the first run of each case is resident
    if ! grep -q '^exit 0$' "$log" || ! grep -Eq '^[1-9][0-9]* passed, 0 failed$' "$log"; then
        grep -Ev '^(PASS|bits)' "$log" > "$work/bad"
        fail "parity_gpt $name $flags" "$work/bad"
    elif [ -z "$bits" ] || [ "$bits" != "${resident_bits[$name]}" ]; then
        fail "parity_gpt $name $flags: bits $bits, the resident run has ${resident_bits[$name]}"
    else
        pass
    fi
done < "$work/runs"
[ "$number" -ge 100 ] || fail "only $number runs: are the cases missing?"

# The comparison can fail: other expected losses, and an adapter whose last float is another.
cp -r "$fixtures/llama_qv" "$work/wrong"
chmod -R u+w "$work/wrong"
sed -i -E '/"losses"/,/\]/ s/^( *)[0-9]+\./\19./' "$work/wrong/expected.json"
attempt "$build/parity_gpt" "$work/wrong"
holds "a case with other losses fails" [ "$status" = 1 ]
prints "a case with other losses says which" '^FAIL loss\.step[0-9]'
cp "$fixtures/llama_qv/expected.json" "$work/wrong/"
size=$(stat -c %s "$work/wrong/adapter/adapter_model.safetensors")
# The high byte of the last float: it becomes -0.5 or less.
printf '\xbf' | dd of="$work/wrong/adapter/adapter_model.safetensors" bs=1 seek=$((size - 1)) conv=notrunc status=none
attempt "$build/parity_gpt" "$work/wrong"
holds "a case with another adapter fails" [ "$status" = 1 ]
prints "a case with another adapter says where" '^FAIL (logits|grad|loss)'

case=$fixtures/llama
for flags in "--lora-r 8" "--learning-rate 1e-3" "--seed 3" "--max-grad-norm 2" "--micro-batch-size 1"; do
    # shellcheck disable=SC2086
    refuses "parity_gpt $flags" "unknown flag ${flags%% *}" "$build/parity_gpt" "$case" $flags
done
refuses "--num-slots 1" "num-slots" "$build/parity_gpt" "$case" --layer-offloading --num-slots 1
refuses "--num-slots without offloading" "layer-offloading" "$build/parity_gpt" "$case" --num-slots 3
refuses "--num-slots nonsense" "num-slots" "$build/parity_gpt" "$case" --layer-offloading --num-slots 3x
refuses "--num-prefetch 0" "num-prefetch" "$build/parity_gpt" "$case" --layer-offloading --num-prefetch 0
refuses "--resident-layers beyond the last" "resident-layers" \
    "$build/parity_gpt" "$case" --layer-offloading --resident-layers 0,9
refuses "--vram-budget too small" "budget" "$build/parity_gpt" "$case" --vram-budget 100K
refuses "no case" "case" "$build/parity_gpt"
refuses "a case that is not there" "$work/none" "$build/parity_gpt" "$work/none"
for missing in expected.json expected.safetensors base/config.json base/model.safetensors adapter/adapter_config.json \
    adapter/adapter_model.safetensors; do
    rm -rf "$work/case"
    cp -r "$case" "$work/case"
    chmod -R u+w "$work/case"
    rm "$work/case/$missing"
    refuses "a case without $missing" "${missing##*/}" "$build/parity_gpt" "$work/case"
done
finish
