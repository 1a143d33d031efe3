#!/bin/bash
# Several ranks give the bits of one: parity cases, whole runs, and runs that are resumed with another number of ranks. A
# rank that throws or hangs ends the run with its name. The last checkpoint is whole then, and after a kill, and can be gone
# on from.
#
# Arguments: the build directory; then `all` for every case and every fault, where CI takes a sample.
. "$(dirname "$0")/common.sh"
all=${2:-}
# On one GPU its ranks share it.
ranks_of() { if on_cuda; then printf '0%.0s,' $(seq "$1") | sed 's/,$//'; else echo "$1"; fi; }

# ---- Parity cases

# One line a run: the case, then flags.
list_runs() {
    local case name n streamed number=0
    for case in "$fixtures"/*/; do
        name=$(basename "$case")
        number=$((number + 1))
        echo "$name"
        for n in 2 4; do
            for streamed in "" "--layer-offloading"; do
                if [ -z "$all" ] && [ "$n$streamed" != 2--layer-offloading ] && [ "$n$streamed" != 4 ]; then continue; fi
                if [ ! -d "$case/adapter" ] && ! grep -q '"freeze_layers": *[1-9]' "$case/expected.json"; then streamed=; fi
                echo "$name --gpus $(ranks_of $n) $streamed"
            done
        done
        # Full training depends on the number of ranks, and repeats itself.
        if [ ! -d "$case/adapter" ]; then echo "$name --gpus $(ranks_of 2)"; fi
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
declare -A bits_of
while read -r name flags; do
    number=$((number + 1))
    log=$work/$number
    bits=$(sed -n 's/^bits //p' "$log")
    of=$name  # LoRA: of all ranks; else of these flags
    case $name in full_*) of="$name ${flags%% --layer*}" ;; esac
    : "${bits_of[$of]=$bits}"
    if ! grep -q '^exit 0$' "$log" || ! grep -Eq '^[1-9][0-9]* passed, 0 failed$' "$log"; then
        grep -Ev '^(PASS|bits)' "$log" > "$work/bad"
        fail "parity_gpt $name $flags" "$work/bad"
    elif [ -z "$bits" ] || [ "$bits" != "${bits_of[$of]}" ]; then
        fail "parity_gpt $name $flags: bits $bits, wanted ${bits_of[$of]}"
    else
        pass
    fi
done < "$work/runs"
[ "$number" -ge 60 ] || fail "only $number runs: are the cases missing?"

# ---- Whole runs

for ((i = 0; i < 90; i++)); do
    echo "{\"prompt\": \"what is $i times $i\", \"completion\": \"it is $((i * i)), and that is all that there is to say\"}"
done > "$work/chat.jsonl"
mkdir "$work/config"
cat > "$work/config/config.json" << 'END'
{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4,
 "vocab_size": 260, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": true}
END
# Rows of more than 256 tokens: sums over them have several parts.
steps=6
command_for() {  # output directory, ranks, further flags
    command=("$build/train_gpt" --base-model "$work/config" --from-scratch --train-data "$work/chat.jsonl"
        --val-set-size 0.2 --sample-packing --sequence-len 288 --lora-r 4 --lora-dropout 0.1 --learning-rate 1e-2
        --weight-decay 0.01 --max-steps $steps --eval-steps 2 --save-steps 1 --sample "what is" --sample-tokens 6
        --layer-offloading --output-dir "$1" --gpus "$(ranks_of "$2")" "${@:3}")
}
compare() {  # directory, name
    local file
    for file in adapter_model.safetensors checkpoint-$steps/optimizer.safetensors checkpoint-$steps/adapter_model.safetensors; do
        same_bits "$2" "$1/$file" "$work/one/$file"
    done
    holds "$2: losses differ" [ "$(losses_of "$1/log.jsonl")" = "$(losses_of "$work/one/log.jsonl")" ]
    eval_losses_of "$1/log.jsonl" > "$work/evals"
    if eval_losses_of "$work/one/log.jsonl" | grep -vxFf "$work/evals" > "$work/bad"; then
        fail "$2: these evaluations are not among its own" "$work/bad"
    fi
    holds "$2: temporaries are left" no_leftovers "$1"
}
command_for "$work/one" 1 --gradient-accumulation-steps 4
require 0 "${command[@]}" || finish
for n in 2 4; do
    command_for "$work/of$n" $n --gradient-accumulation-steps $((4 / n))
    require 0 "${command[@]}"
    prints "$n ranks: the plan" "^$n ranks.*: a step has 4 micro-batches in $((4 / n)) rounds?; a round exchanges"
    compare "$work/of$n" "$n ranks"
    samples=$(sed -nE 's/.*"event":"sample".*"text":("[^"]*").*/\1/p' "$work/of$n/log.jsonl")
    holds "$n ranks: samples" [ "$samples" = "$(sed -nE 's/.*"event":"sample".*"text":("[^"]*").*/\1/p' "$work/one/log.jsonl")" ]
done
# Three micro-batches on four ranks, and --exchange-every on any number.
steps=3
command_for "$work/one3" 1 --gradient-accumulation-steps 3
require 0 "${command[@]}"
command_for "$work/begun" 1 --gradient-accumulation-steps 3
"${command[@]}" > "$output" 2>&1 &
pid=$!
until [ -d "$work/begun/checkpoint-1" ] || ! kill -0 $pid 2> /dev/null; do sleep 0.02; done
kill -INT $pid 2> /dev/null
wait $pid
rm -rf "$work/begun/checkpoint-3"
command_for "$work/begun" 4 --resume-from-checkpoint last
require 0 "${command[@]}"
same_bits "three micro-batches on four ranks" "$work/begun/adapter_model.safetensors" "$work/one3/adapter_model.safetensors"
for n in 1 2 3; do
    command_for "$work/every$n" $n --gradient-accumulation-steps $((6 / n)) --exchange-every 2
    require 0 "${command[@]}"
    same_bits "--exchange-every 2 on $n ranks" "$work/every$n/adapter_model.safetensors" \
        "$work/every1/adapter_model.safetensors"
done
refuses "another --exchange-every" "exchange-every" \
    "${command[@]}" --exchange-every 3 --resume-from-checkpoint "$work/every3/checkpoint-2" --output-dir "$work/other"
steps=6

# ---- 4, then 1, then 3 ranks; interrupted in between
stop_after() {  # checkpoint
    "${command[@]}" > "$output" 2>&1 < /dev/null &
    pid=$!
    until [ -d "$work/changing/checkpoint-$1" ] || ! kill -0 $pid 2> /dev/null; do sleep 0.01; done
    kill -INT $pid 2> /dev/null
    wait $pid
    status=$?
}
command_for "$work/changing" 4 --gradient-accumulation-steps 1 --resume-from-checkpoint last
stop_after 1
holds "Ctrl-C on four ranks ends with 130, not $status" [ $status = 130 ]
prints "Ctrl-C on four ranks" '^interrupted after step [1-9][0-9]*; checkpoint saved, go on with'
command_for "$work/changing" 1 --resume-from-checkpoint last
stop_after 3
command_for "$work/changing" 3 --resume-from-checkpoint last
require 0 "${command[@]}"
compare "$work/changing" "4, then 1, then 3 ranks"
command_for "$work/other" 3 --gradient-accumulation-steps 3 --resume-from-checkpoint "$work/changing/checkpoint-2"
refuses "other micro-batches than the checkpoint's" 'gradient-accumulation-steps \(times GPUs\) 4, this one has 9' \
    "${command[@]}"

# ---- Ctrl-C at moments that a fault point chooses: all ranks drop the same step
places=("targets of step:3" "round of step:4" "losses:5" "gradients:2" "totals:6" "evaluation:3" "micro-batch of step:5"
    "saving step:3" "numbers of step:4" "after step:5")
for place in "${places[@]}"; do
    rank=$((RANDOM % 4))
    [ "${place%%:*}" = "saving step" ] && rank=0
    rm -rf "$work/stopped"
    command_for "$work/stopped" 4 --gradient-accumulation-steps 1 --resume-from-checkpoint last
    SLABSTREAM_FAULT="$rank:$place:interrupt" "${command[@]}" > "$output" 2>&1
    status=$?
    holds "Ctrl-C at $place: status $status" [ $status = 130 ]
    require 0 "${command[@]}" && compare "$work/stopped" "Ctrl-C at $place"
    [ -z "$all" ] && [ "$place" = "gradients:2" ] && break
done

# ---- Faults on each rank at eight places
places=("targets of step" "reading data, step" "round of step" "micro-batch of step" "losses" "gradients" "totals"
    "numbers of step")
index=0
for rank in 0 1 2 3; do
    for place in "${places[@]}"; do
        for kind in throw hang kill; do
            index=$((index + 1))
            if [ -z "$all" ] && [ $((index % 11)) != 1 ]; then continue; fi
            rm -rf "$work/faulty"
            command_for "$work/faulty" 4 --gradient-accumulation-steps 1 --resume-from-checkpoint last --comm-timeout 2
            # Where the shell's own word on a kill goes to.
            { SLABSTREAM_FAULT="$rank:$place:4:$kind" "${command[@]}" > "$output" 2>&1; } 2> /dev/null
            status=$?
            name="rank $rank, $place, $kind"
            case $kind in
                kill) holds "$name: status $status, wanted 137" [ $status = 137 ] ;;
                throw) wanted=": a fault at \`$place\`" ;;
                hang) wanted=" has been at \`$place [0-9]+\` for 2 s" ;;
            esac
            if [ $kind != kill ]; then
                holds "$name: status $status, wanted 1" [ $status = 1 ]
                prints "$name" "^train_gpt: rank $rank( \(GPU [0-9]+\))?$wanted"
                holds "$name: more than one error" [ "$(grep -c '^train_gpt: ' "$output")" = 1 ]
            fi
            require 0 "${command[@]}" && compare "$work/faulty" "$name: resumed"
        done
    done
done

# ---- What cannot be
command_for "$work/wrong" 1
command=("${command[@]:0:${#command[@]}-2}")  # without --gpus
for wrong in 0 x 1, 99 1.5; do refuses "--gpus $wrong" "gpus.*wanted" "${command[@]}" --gpus "$wrong"; done
on_cuda || refuses "--gpus 0,1 on the CPU" "this build runs on the CPU" "${command[@]}" --gpus 0,1
refuses "a budget too small for two ranks" "budget" "${command[@]}" --gpus 0,0 --vram-budget 1M
refuses "--exchange-every 0" "exchange-every" "${command[@]}" --exchange-every 0
refuses "--transport of nothing" "transport" "${command[@]}" --transport pigeon
on_cuda || refuses "--transport nccl on the CPU" "NCCL" "${command[@]}" --gpus 2 --transport nccl
refuses "--comm-timeout 0" "comm-timeout" "${command[@]}" --comm-timeout 0
finish
