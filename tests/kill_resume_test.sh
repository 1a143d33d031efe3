#!/bin/bash
# Runs are killed at random moments, saves included, and resumed from their last checkpoint. They must end with the bits of
# the unbroken run: adapter, optimizer, every loss. The same holds for runs that Ctrl-C or SIGTERM stops.
#
# Resuming is made hard: dropout, accumulation, several epochs, checkpoints at every step, old ones deleted. Each attempt
# streams in another way, which must not matter. Arguments: the build directory, and a seed of the moments.
. "$(dirname "$0")/common.sh"
RANDOM=${2:-$$}
seed=${2:-$$}
steps=10

for ((i = 0; i < 80; i++)); do echo "$i is a number, and $((i * i)) is its square."; done > "$work/text"
"$build/tokenize" --output-dir "$work/data" --val-fraction 0.1 "$work/text" > "$output" 2>&1 ||
    { fail "tokenize" "$output" && finish; }

ways=("--layer-offloading" "--layer-offloading --num-slots 3 --recompute none" "--recompute none"
    "--layer-offloading --num-slots 4 --num-prefetch 2 --resident-layers 1")
# Sets the command that starts or goes on in the output directory $1, streaming in way $2.
command_for() {
    # shellcheck disable=SC2206
    command=("$build/train_gpt" --base-model "$fixtures/llama/base" --train-data "$work/data/train.bin"
        --val-data "$work/data/val.bin" --sequence-len 64 --micro-batch-size 2 --gradient-accumulation-steps 3
        --lora-r 4 --lora-dropout 0.1 --learning-rate 2e-3 --weight-decay 0.01 --max-steps $steps --eval-steps 4
        --save-steps 1 --save-total-limit 2 --output-dir "$1" --resume-from-checkpoint last ${ways[$2 % ${#ways[@]}]})
}
# Runs it to the end, which it must reach.
train() {
    command_for "$@"
    require 0 "${command[@]}"
}
# Starts it in the background, as $pid.
start() {
    command_for "$@"
    "${command[@]}" > "$output" 2>&1 < /dev/null &
    pid=$!
}

# The finished run in $1 (called $2) against the unbroken one.
compare() {
    same_bits "$2: adapter" "$1/adapter_model.safetensors" "$work/unbroken/adapter_model.safetensors"
    local file
    for file in adapter_model.safetensors optimizer.safetensors; do
        same_bits "$2: last checkpoint" "$1/checkpoint-$steps/$file" "$work/unbroken/checkpoint-$steps/$file"
    done
    # It names its best checkpoint, and when its run began.
    sed "s|$1/|$work/unbroken/|" "$1/checkpoint-$steps/trainer_state.json" | grep -v '"first_start"' > "$work/state"
    grep -v '"first_start"' "$work/unbroken/checkpoint-$steps/trainer_state.json" > "$work/unbroken_state"
    same_bits "$2: last checkpoint" "$work/state" "$work/unbroken_state"
    holds "$2: losses differ" [ "$(losses_of "$1/log.jsonl")" = "$(losses_of "$work/unbroken/log.jsonl")" ]
    # A run that was resumed at another step evaluates there too.
    eval_losses_of "$1/log.jsonl" > "$work/evals"
    if grep -vxFf "$work/evals" "$work/unbroken_evals" > "$work/bad"; then
        fail "$2: these evaluations are not among its own" "$work/bad"
    fi
    holds "$2: temporaries are left" no_leftovers "$1"
    holds "$2: wanted the two newest checkpoints and the best, whole" \
        [ "$(cd "$1" && echo checkpoint-*/*)" = "$(cd "$work/unbroken" && echo checkpoint-*/*)" ]
}

began=$(date +%s%N)
train "$work/unbroken" 0 || finish
duration_us=$((($(date +%s%N) - began) / 1000))
eval_losses_of "$work/unbroken/log.jsonl" > "$work/unbroken_evals"
holds "the unbroken run logged $steps losses" [ "$(losses_of "$work/unbroken/log.jsonl" | wc -l)" = $steps ]
holds "the unbroken run logged evaluations" [ "$(wc -l < "$work/unbroken_evals")" = 4 ]
train "$work/resident" 2 && compare "$work/resident" "resident"

# Returns in $status how the run ended: 137 when the signal met it. $1 directory, $2 way, $3 moment in microseconds.
run_and_kill() {
    start "$1" "$2"
    sleep "$(printf '%d.%06d' $(($3 / 1000000)) $(($3 % 1000000)))"
    kill -KILL $pid 2> /dev/null
    wait $pid 2> /dev/null
    status=$?
}
# The same, in the middle of a save: as soon as a temporary is seen.
run_and_kill_saving() {
    start "$1" "$2"
    until compgen -G "$1/.tmp-*-checkpoint-*" > /dev/null || ! kill -0 $pid 2> /dev/null; do :; done
    kill -KILL $pid 2> /dev/null
    wait $pid 2> /dev/null
    status=$?
}

kills=0 saving_kills=0 leftovers=0
for ((run = 1; kills < 20 && run <= 200; run++)); do
    name="run $run of seed $seed"
    for ((again = 0; again <= run % 3; again++)); do
        run_and_kill "$work/run" $((run + again)) $(((RANDOM * 32768 + RANDOM) % duration_us))
        [ $status = 137 ] && kills=$((kills + 1))
        no_leftovers "$work/run" || leftovers=$((leftovers + 1))
        case $status in 0 | 137) ;; *) fail "$name: exit status $status" "$output" ;; esac
    done
    train "$work/run" $((run + 2)) && compare "$work/run" "$name"
    rm -rf "$work/run"
done
holds "only $kills kills met a running program" [ "$kills" -ge 20 ]
for ((run = 1; run <= 5; run++)); do
    name="run $run killed while saving"
    for again in 1 2 3; do
        run_and_kill_saving "$work/run" $((run + again))
        [ $status = 137 ] && saving_kills=$((saving_kills + 1))
        no_leftovers "$work/run" || leftovers=$((leftovers + 1))
    done
    train "$work/run" $((run + 2)) && compare "$work/run" "$name"
    rm -rf "$work/run"
done
holds "$saving_kills kills of 15 met a save" [ "$saving_kills" -ge 5 ]
holds "no kill left a temporary: none met a save in the middle" [ "$leftovers" -ge 1 ]

for signal in INT TERM; do
    # On a busy machine the run may be over before its third step is noticed.
    for attempt in 1 2 3 4 5; do
        rm -rf "$work/run"
        start "$work/run" "$attempt"
        until grep -qs '"step":3,' "$work/run/log.jsonl" || ! kill -0 $pid 2> /dev/null; do sleep 0.005; done
        kill -$signal $pid 2> /dev/null
        wait $pid 2> /dev/null
        status=$?
        [ $status != 0 ] && break
    done
    holds "SIG$signal ends with status 130, not $status" [ $status = 130 ]
    prints "SIG$signal says how to go on" 'interrupted after step [0-9]+.*--resume-from-checkpoint last'
    step=$(sed -nE 's/^interrupted after step ([0-9]+);.*/\1/p' "$output")
    holds "SIG$signal saves where it stops" [ -e "$work/run/checkpoint-$step/trainer_state.json" ]
    holds "SIG$signal is no end: no adapter at the top" [ ! -e "$work/run/adapter_model.safetensors" ]
    train "$work/run" 1 && compare "$work/run" "SIG$signal"
done

# A signal in the middle of a step of many micro-batches does not wait for its end, and the step leaves no trace.
long_steps() {
    command=("$build/train_gpt" --base-model "$fixtures/llama/base" --train-data "$work/data/train.bin" --sequence-len 64
        --gradient-accumulation-steps 100 --lora-r 2 --lora-dropout 0.1 --max-steps 4 --layer-offloading
        --output-dir "$1" --resume-from-checkpoint last)
}
long_steps "$work/long" && require 0 "${command[@]}"
for attempt in 1 2 3 4 5; do
    rm -rf "$work/run"
    long_steps "$work/run"
    "${command[@]}" > "$output" 2>&1 < /dev/null &
    pid=$!
    until grep -qs '"step":1,' "$work/run/log.jsonl" || ! kill -0 $pid 2> /dev/null; do sleep 0.005; done
    kill -INT $pid 2> /dev/null
    wait $pid
    status=$?
    grep -q 'was under way' "$output" && break
done
holds "a signal in the middle of a step ends with status 130, not $status" [ $status = 130 ]
prints "a signal in the middle of a step" 'note: step [0-9] was under way and is dropped'
long_steps "$work/run" && require 0 "${command[@]}"
same_bits "a dropped step" "$work/run/adapter_model.safetensors" "$work/long/adapter_model.safetensors"
holds "a dropped step: losses differ" [ "$(losses_of "$work/run/log.jsonl")" = "$(losses_of "$work/long/log.jsonl")" ]

# A checkpoint of another run is refused, and so is another way of training in the middle of one.
refuses "resuming with another dropout" "lora-dropout 0\.1.* 0\.2" "$build/train_gpt" --base-model "$fixtures/llama/base" \
    --train-data "$work/data/train.bin" --sequence-len 64 --micro-batch-size 2 --gradient-accumulation-steps 3 --lora-r 4 \
    --lora-dropout 0.2 --learning-rate 2e-3 --weight-decay 0.01 --max-steps $steps --output-dir "$work/unbroken" \
    --resume-from-checkpoint last
refuses "resuming from nothing" "$work/none" "$build/train_gpt" --base-model "$fixtures/llama/base" \
    --train-data "$work/data/train.bin" --sequence-len 64 --output-dir "$work/other" --resume-from-checkpoint "$work/none"
finish
