#!/bin/bash
# Signals that stop build/tokenize and build/export_gpt. The programs end as the signal does, at once even while a pipe
# gives nothing, and leave no file, not even a temporary. A SIGHUP that the parent ignores stays ignored.
#
# The argument is the build directory.
. "$(dirname "$0")/common.sh"

declare -A status_of=([INT]=130 [TERM]=143 [HUP]=129)
# Waits until a temporary lies in the directory $1, or process $pid has ended.
until_writing() {
    until compgen -G "$1/.tmp-*" > /dev/null || ! kill -0 "$pid" 2> /dev/null; do :; done
}

mkfifo "$work/pipe" "$work/silent"
exec 3<> "$work/pipe"  # a writer that stays
echo "one text, of which more is to come" >&3
for signal in INT TERM HUP; do
    for pipe in pipe silent; do  # the second has no writer at all
        "$build/tokenize" --output-dir "$work/data" "$work/$pipe" > "$output" 2>&1 &
        pid=$!
        until_writing "$work/data"
        kill -$signal $pid
        wait $pid 2> /dev/null
        status=$?
        holds "tokenize, $pipe: SIG$signal ends with ${status_of[$signal]}, not $status" [ $status = ${status_of[$signal]} ]
        prints "tokenize, $pipe, SIG$signal" '^tokenize: interrupted; nothing was written$'
        holds "tokenize, $pipe: SIG$signal leaves files, or the directory that it made" [ ! -e "$work/data" ]
    done
done
(
    trap '' HUP
    exec "$build/tokenize" --output-dir "$work/data" "$work/silent" > "$output" 2>&1
) &
pid=$!
until_writing "$work/data"
kill -HUP $pid
# Waits for a reader; there is none after tokenize has ended.
timeout 60 bash -c 'for ((i = 0; i < 100; i++)); do echo "text number $i"; done > "$1"' writer "$work/silent"
wait $pid
status=$?
holds "tokenize goes on after a SIGHUP that nohup has set to be ignored, status $status" [ $status = 0 ]
prints "tokenize under nohup" 'train.bin: .* tokens'

# A base of 40 MB, so that a merge takes a while.
mkdir "$work/config"
cat > "$work/config/config.json" << 'END'
{"model_type": "llama", "hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 4, "num_hidden_layers": 6,
 "vocab_size": 260, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": true}
END
train=("$build/train_gpt" --train-data "$work/data/train.bin" --sequence-len 8 --max-steps 1)
require 0 "${train[@]}" --base-model "$work/config" --from-scratch --adapter none --output-dir "$work/base" || finish
require 0 "${train[@]}" --base-model "$work/base" --lora-r 2 --output-dir "$work/adapter" || finish
mkdir "$work/out"
for signal in INT TERM HUP; do
    for attempt in 1 2 3 4 5 6 7 8 9 10; do  # on a busy machine the merge may be over before its beginning is noticed
        rm -rf "$work/out/merged"
        "$build/export_gpt" --base-model "$work/base" --adapter "$work/adapter" --merge "$work/out/merged" --dtype f16 \
            --threads 1 > "$output" 2>&1 &
        pid=$!
        until_writing "$work/out"
        kill -$signal $pid 2> /dev/null
        wait $pid 2> /dev/null
        status=$?
        [ $status != 0 ] && break
    done
    holds "export_gpt: SIG$signal ends with ${status_of[$signal]}, not $status" [ $status = ${status_of[$signal]} ]
    prints "export_gpt, SIG$signal" '^export_gpt: interrupted; what was being written is removed$'
    holds "export_gpt: SIG$signal leaves files" [ -z "$(ls -A "$work/out")" ]
done
finish
