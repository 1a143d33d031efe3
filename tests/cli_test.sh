#!/bin/bash
# The command line of train_gpt: flags and config files, the plan, budgets with advice, the step line, the log, the trace,
# samples. Where train_gpt says that something changes no bits, the bits are compared.
#
# The argument is the build directory.
. "$(dirname "$0")/common.sh"

for ((i = 0; i < 120; i++)); do echo "$i apples and $((3 * i)) pears make $((4 * i)) fruits."; done > "$work/text"
"$build/tokenize" --output-dir "$work/data" --val-fraction 0.1 "$work/text" > "$output" 2>&1 ||
    { fail "tokenize" "$output" && finish; }
base=$fixtures/llama/base # 4 layers, vocabulary 260
data=(--base-model "$base" --train-data "$work/data/train.bin" --sequence-len 32)
# A short run into $work/$1, with further flags.
run() { run_full "$1" --lora-r 2 "${@:2}"; }
run_full() { "$build/train_gpt" "${data[@]}" --output-dir "$work/$1" --max-steps 3 "${@:2}"; }
plan() { "$build/train_gpt" --base-model "$base" --plan "$@"; }
adapter_of() { echo "$work/$1/adapter_model.safetensors"; }
# The value of a number or text in the log line of $work/$1 that matches $2; the last one if there are several.
logged() { grep -E -e "$2" "$work/$1/log.jsonl" | sed -nE "s/.*\"$3\":\"?([^,\"}]*).*/\1/p" | tail -n 1; }
# The file is JSON, by the strict reader that config.json goes through: it then only misses what a config must have.
is_json() {
    mkdir -p "$work/reader"
    cp "$1" "$work/reader/config.json"
    refuses "$1 is no JSON" '"model_type" is' "$build/train_gpt" --base-model "$work/reader" --plan
}

# --- flags
require 0 "$build/train_gpt" --help
for flag in base-model train-data output-dir lora-r layer-offloading num-slots vram-budget resume-from-checkpoint plan; do
    prints "--help" "--$flag"
done
refuses "no flags" "--base-model is missing" "$build/train_gpt"
refuses "no data" "--train-data is missing" "$build/train_gpt" --base-model "$base"
refuses "no output directory" "--output-dir is missing" "$build/train_gpt" "${data[@]}"
refuses "no such base" "$work/none" "$build/train_gpt" --base-model "$work/none" --plan
refuses "an unknown flag" "unknown flag --learning-rat;.*--learning-rate" plan --learning-rat 1
refuses "an unknown flag" "unknown flag --lora-rnk" plan --lora-rnk=4
refuses "an unknown flag" "unknown flag --layer-ofloading;.*--layer-offloading" plan --layer_ofloading
while read -r flags; do
    # shellcheck disable=SC2086
    refuses "$flags" "${flags%% *}" plan $flags
done << 'END'
--lora-r 0
--lora-r 4x
--lora-r
--lora-alpha -1
--lora-dropout 1
--lora-target-modules nothing_proj
--adapter dora
--learning-rate nan
--learning-rate -1
--lr-scheduler staircase
--warmup-ratio 2
--weight-decay -1
--max-grad-norm -1
--adam-beta1 1
--adam-epsilon 0
--max-steps -1
--num-epochs 0
--sequence-len 0
--micro-batch-size 0
--gradient-accumulation-steps 0
--freeze-layers 5
--freeze-layers 2 --adapter lora
--lora-r 4 --adapter none
--use-rslora --freeze-layers 2
--num-epochs 2 --max-steps 3
--warmup-ratio 0.1 --warmup-steps 3
--top-k 3 --sample x --sample-temperature 0
--num-slots 3
--num-prefetch 2
--resident-layers 1
--num-slots 1 --layer-offloading
--vram-budget 12Q
--vram-budget -1
--recompute some
--save-steps -1
--sample-temperature -1
--sample-temperature -1 --sample x
--top-p 0 --sample x
--trace-steps 3:1
--trace-steps 3:1 --trace t.json
--threads -1
END

require 1 plan --lora-r 5 --lora_r=3
holds "a flag given twice is refused" grep -q -e '--lora-r: is given twice: 5, 3' "$output"

# --- the plan
require 0 plan --layer_offloading --lora_r=4 --output_dir "$work/planned"
prints "--plan" '^ +in all +.*bytes\)$'
prints "--plan" 'ring +2 slots for 4 streamed layers'
holds "--plan made the output directory" [ ! -e "$work/planned" ]
# 8 billion parameters; nothing of them may be allocated.
mkdir "$work/large"
cat > "$work/large/config.json" << 'END'
{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
 "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
 "tie_word_embeddings": false}
END
small_memory() { (if ! on_cuda && ! sanitized; then ulimit -v 1000000; fi && exec "$@"); }
require 0 small_memory "$build/train_gpt" --base-model "$work/large" --plan --layer-offloading
prints "the plan of a large model" 'ring +2 slots for 32 streamed layers +[0-9.]+ [MG]iB'
prints "the plan of a large model" ', 8\.0 B parameters'
require 0 run measured --layer-offloading --micro-batch-size 2
planned=$(logged measured '"start"' planned_device_bytes)
if ! on_cuda; then # a GPU's own share is only known roughly
    holds "the peak differs from the plan of $planned bytes" [ "$(logged measured '"end"' device_peak_bytes)" = "$planned" ]
fi

# --- config files: command line beats file beats default, and config.toml repeats a run
cat > "$work/run.toml" << 'END'
lora-r = 3
lora_alpha = 5.0
max-steps = 2
lr-scheduler = "constant"
layer_offloading = true
END
require 0 "$build/train_gpt" "${data[@]}" --config "$work/run.toml" --output-dir "$work/from_file" \
    --max-steps 4 --learning_rate 3e-4
prints "the command line beats the file" '^step 4/4 '
prints "the file beats the default" 'moved 4 slabs'
for setting in '"r": 3' '"lora_alpha": 5'; do
    holds "the file's $setting does not reach the adapter" grep -q "$setting" "$work/from_file/adapter_config.json"
done
holds "constant learning rate: $(logged from_file '"step":3,' learning_rate)" \
    [ "$(printf %.7f "$(logged from_file '"step":3,' learning_rate)")" = 0.0003000 ]
echo 'lora-rang = 3' > "$work/bad.toml"
refuses "an unknown key" "lora-rang.*lora-r" plan --config "$work/bad.toml"
printf '[training]\nlora-r = 3\n' > "$work/bad.toml"
refuses "a section" "training" plan --config "$work/bad.toml"
echo 'lora-r = "many"' > "$work/bad.toml"
refuses "text for a number" "lora-r" plan --config "$work/bad.toml"
refuses "no such file" "$work/none.toml" plan --config "$work/none.toml"
require 0 run original --lora-dropout 0.1 --seed 7 --lora-target-modules q_proj,down_proj --weight-decay 0.1 \
    --gradient-accumulation-steps 2 --warmup-steps 2 --lr-scheduler linear --layer-offloading --num-slots 3 --use-rslora
require 0 "$build/train_gpt" --config "$work/original/config.toml" --output-dir "$work/repeated"
same_bits "config.toml repeats the run" "$(adapter_of original)" "$(adapter_of repeated)"
holds "config.toml repeats the losses" [ "$(losses_of "$work/original/log.jsonl")" = "$(losses_of "$work/repeated/log.jsonl")" ]
holds "config.toml repeats the streaming" [ "$(logged repeated '"start"' slots)" = 3 ]

# --- what must not change the bits
require 0 run plain
for flags in "--threads 1" "--layer-offloading" "--recompute block" "--sample The" "--logging-steps 2" "--save-steps 1" \
    "--val-data $work/data/val.bin --eval-steps 1" "--layer-offloading --num-slots auto" \
    "--layer-offloading --resident-layers 2 --num-slots 2 --recompute none"; do
    # shellcheck disable=SC2086
    require 0 run same $flags && same_bits "$flags" "$(adapter_of plain)" "$(adapter_of same)"
    rm -rf "$work/same"
done
require 0 run other --seed 8
holds "another seed gives another adapter" [ "$(cksum < "$(adapter_of plain)")" != "$(cksum < "$(adapter_of other)")" ]

# --- the step line and the log: a cold pass loads 2N-R slabs, then 2(N-R) a micro-batch; none come back
require 0 run streamed --layer-offloading --num-slots 3 --gradient-accumulation-steps 2
n='[0-9][0-9.,e-]*'
prints "the step line" "^step 3/3  loss $n  lr $n  gnorm $n  $n tok/s  VRAM $n(/$n)? [KMG]iB  moved 4 slabs $n [KM]iB  link"
prints "the step line" "[KM]iB  link $n of $n GB/s  waiting [0-9]+%  left [0-9]+:[0-9]+:[0-9]+\$"
prints "the summary" 'streamed 15 slabs.*weights moved back: 0 bytes'
slab_bytes=$(logged streamed '"start"' slot_bytes)
for step in "1 7" "2 4" "3 4"; do
    slabs=${step#* } step=${step% *}
    holds "step $step moved $(logged streamed "\"step\":$step," slabs_in) slabs, wanted $slabs" \
        [ "$(logged streamed "\"step\":$step," slabs_in)" = "$slabs" ]
    holds "step $step moved other bytes than its slabs have" \
        [ "$(logged streamed "\"step\":$step," bytes_in)" = $((slabs * slab_bytes)) ]
    holds "step $step moved weights back" \
        [ "$(logged streamed "\"step\":$step," slabs_out)$(logged streamed "\"step\":$step," bytes_out)" = 00 ]
done
for field in loss learning_rate grad_norm epoch tokens targets tokens_per_second waiting link_gbps device_peak_bytes; do
    holds "the log lacks $field" [ -n "$(logged streamed '"loss"' $field)" ]
done
holds "the log says that offloading is active" [ "$(logged streamed '"start"' offload)" = active ]
holds "the log says that offloading is off" [ "$(logged plain '"start"' offload)" = off ]
while read -r line; do
    echo "$line" > "$work/line"
    is_json "$work/line"
done < "$work/streamed/log.jsonl"
require 0 run logged --log "$work/elsewhere.jsonl"
holds "--log goes elsewhere" [ -s "$work/elsewhere.jsonl" ]
holds "--log goes elsewhere only" [ ! -e "$work/logged/log.jsonl" ]

# --- budgets
budget_run() { "$build/train_gpt" --config "$work/budget.toml" --output-dir "$work/$1" "${@:2}"; }
printf '%s\n' "base-model = \"$base\"" "train-data = \"$work/data/train.bin\"" "sequence-len = 64" "micro-batch-size = 4" \
    "max-steps = 1" "lora-r = 2" > "$work/budget.toml"
# On a GPU the driver's share counts. The budget is compared with the plan's total.
require 0 plan --config "$work/budget.toml" --output-dir "$work/x"
total=$(sed -nE 's/^ +in all .*\(([0-9,]+) bytes\)$/\1/p' "$output" | tr -d ,)
require 0 plan --config "$work/budget.toml" --output-dir "$work/x" --layer-offloading --micro-batch-size 1
least=$(sed -nE 's/^ +in all .*\(([0-9,]+) bytes\)$/\1/p' "$output" | tr -d ,)
require 0 budget_run exact --vram-budget "$total"
advised=0
for budget in $((total - 1)) $(((total + least) / 2)) "$least"; do
    refuses "a budget of $budget of $total bytes" "the budget is" budget_run refused --vram-budget "$budget"
    prints "the advice" '^It would fit with:|It would fit with:$'
    holds "a refused budget wrote something" [ ! -e "$work/refused" ]
    sed -nE 's/^  (.*)  would need .*/\1/p' "$output" > "$work/advice"
    while read -r flags; do
        advised=$((advised + 1))
        flags=$(sed -E 's/without --resident-layers//; s/\(.*\)//' <<< "$flags") # what is said in words
        rm -rf "$work/advised"
        # shellcheck disable=SC2086
        require 0 budget_run advised --vram-budget "$budget" $flags && pass
    done < "$work/advice"
done
holds "only $advised pieces of advice" [ $advised -ge 3 ]
refuses "a budget for nothing" "(the least is|No choice)" budget_run refused --vram-budget 10K
holds "a refused budget wrote something" [ ! -e "$work/refused" ]
for more in 0 1 2 5; do
    budget=$((least + more * slab_bytes))
    require 0 budget_run auto --micro-batch-size 1 --layer-offloading --num-slots auto --vram-budget $budget
    slots=$(logged auto '"start"' slots)
    wanted=$((2 + more < 4 ? 2 + more : 4))
    holds "--num-slots auto takes $slots slots with $more more in the budget, wanted $wanted" [ "$slots" = $wanted ]
    rm -rf "$work/auto"
done

# --- what trains
require 0 run_full full --adapter none --layer-offloading
prints "nothing to stream" '^warning: --layer-offloading has nothing to stream'
holds "the log says that offloading is inactive" [ "$(logged full '"start"' offload)" = inactive ]
require 0 run_full full_plain --adapter none
same_bits "--adapter none, offloading or not" "$work/full/model.safetensors" "$work/full_plain/model.safetensors"
require 0 run_full frozen --freeze-layers 3 --layer-offloading --num-slots 2
require 0 run_full frozen_plain --freeze-layers 3
same_bits "--freeze-layers, streamed or not" "$work/frozen/model.safetensors" "$work/frozen_plain/model.safetensors"
holds "--freeze-layers 3 streams 3 layers" [ "$(logged frozen '"start"' streamed_layers)" = 3 ]
require 0 "$build/train_gpt" --base-model "$work/frozen" --train-data "$work/data/train.bin" --sequence-len 32 --max-steps 1 \
    --output-dir "$work/on_frozen"
prints "a trained model is a base" '^wrote '
require 0 "$build/train_gpt" --base-model "$work/large" --from-scratch --plan --adapter none --vram-budget 1T
require 0 run goes_on --adapter-in "$work/plain" --learning-rate 0
same_bits "--adapter-in starts from that adapter" "$(adapter_of plain)" "$(adapter_of goes_on)"
refuses "--adapter-in and another rank" "--lora-r 5 .*contradicts --adapter-in" run_full none --adapter-in "$work/plain" --lora-r 5
require 0 run goes_on_2 --adapter-in "$work/plain"
holds "--adapter-in trains it on" [ "$(cksum < "$(adapter_of plain)")" != "$(cksum < "$(adapter_of goes_on_2)")" ]
refuses "--adapter-in without an adapter" "$work/data" run_full none --adapter-in "$work/data"
refuses "--adapter-in with --adapter none" "adapter-in" run_full none --adapter-in "$work/plain" --adapter none

# --- what is printed, and where
require 0 "$build/train_gpt" --version
prints "--version" '^train_gpt of slabstream [0-9]+\.[0-9]+'
refuses "a flag of other trainers" "unknown flag --lr;.*--learning-rate" plan --lr 1
refuses "a budget in bytes" "did you mean 12G" plan --vram-budget 12
attempt plan --sequence-len 32 --vram-budget 100K
holds "--plan of what does not fit exits with $status, wanted 1" [ "$status" = 1 ]
"$build/train_gpt" "${data[@]}" --output-dir "$work/closed" --max-steps 2 --lora-r 2 <&- >&- 2> "$output"
holds "a run with standard output closed" [ $? = 0 ]
holds "its log has nothing but JSON" [ "$(grep -cv '^{' "$work/closed/log.jsonl")" = 0 ]
"$build/train_gpt" "${data[@]}" --output-dir "$work/piped" --max-steps 30 --lora-r 2 2> "$output" | head -n 1 > /dev/null
holds "a run goes on when nobody reads what it prints" [ -e "$work/piped/adapter_model.safetensors" ]
"$build/train_gpt" --help > /dev/full 2> "$output"
holds "--help on a full disk" [ $? = 1 ]
mkfifo "$work/pipe"
refuses "a pipe as config file" "pipe" timeout 5 "$build/train_gpt" --config "$work/pipe" --plan
"$build/train_gpt" "${data[@]}" --output-dir "$work/twice" --max-steps 100000 --lora-r 2 > "$work/first" 2>&1 &
first=$!
until grep -q '^step 1/' "$work/first" || ! kill -0 $first 2> /dev/null; do sleep 0.1; done
refuses "a directory that another run writes into" "another run is writing" run twice
kill -HUP $first
wait $first
holds "a run ended by a hang-up saves a checkpoint" [ -n "$(find "$work/twice" -name 'checkpoint-*')" ]

cp "$work/text" "$work/own.bin"
refuses "tokenize over its own input" "own.bin: would be replaced" \
    "$build/tokenize" --output-dir "$work" --name own "$work/own.bin"
holds "the input of a refused tokenize is as it was" cmp -s "$work/text" "$work/own.bin"

# --- validation
require 0 run share --val-set-size 0.2
prints "--val-set-size 0.2" '^eval 3/3  loss [0-9.]+  perplexity [0-9.]+  \('
prints "--val-set-size 0.2" '^validation loss [0-9.]+ before, [0-9.]+ after'
require 0 run rows --val-set-size 5
prints "--val-set-size 5" '^eval 0/3 .*\(5 rows\)$'
holds "eval_loss is in the log" [ -n "$(logged rows '"step":3' eval_loss)" ]
refuses "--eval-steps without validation rows" "eval-steps" run none --eval-steps 2
require 0 run best --val-set-size 0.2 --eval-steps 1 --save-steps 1 --save-total-limit 1
prints "the best checkpoint" '^best checkpoint: .*/best/checkpoint-[0-9]+, validation loss [0-9.]+'
best=$(sed -nE 's/^best checkpoint: (.*), validation.*/\1/p' "$output")
holds "the best checkpoint is kept" [ -f "$best/trainer_state.json" ]
holds "the best checkpoint knows of itself" grep -qF "\"best_model_checkpoint\": \"$best\"" "$best/trainer_state.json"
refuses "--val-set-size holds out everything" "val-set-size" run none --val-set-size 100000
refuses "--val-set-size and --val-data" "val-set-size and --val-data" run none --val-set-size 5 --val-data "$work/data/val.bin"

# --- samples: bytes of the model's own, the same for the same seed
require 0 run sampled --sample "Once" --sample-tokens 20 --layer-offloading --learning-rate 0
prints "--sample" '^sample before: Once\|'
prints "--sample" '^sample after: Once\|'
text() { grep -F "\"when\":\"$2\"" "$work/$1/log.jsonl" | sed -E 's/.*"text":("([^"\\]|\\.)*").*/\1/'; }
holds "the log lacks the sample" [ -n "$(text sampled before)" ]
holds "the same model and seed give the same sample" [ "$(text sampled before)" = "$(text sampled after)" ]
require 0 run cold --sample "Once" --sample-tokens 20 --sample-temperature 0 --learning-rate 0
require 0 run topk --sample "Once" --sample-tokens 20 --top-k 1 --learning-rate 0 --layer-offloading
holds "--top-k 1 is temperature 0, streamed or not" [ "$(text cold before)" = "$(text topk before)" ]
refuses "--top-k without --sample" "top-k requires --sample" run none --top-k 5
refuses "--trace-steps without --trace" "trace-steps requires --trace" run none --trace-steps 1:2
refuses "--sample without a tokenizer" "--sample.*260" "$build/train_gpt" --base-model "$fixtures/llama_qv/base" \
    --plan --sample x

# --- the trace: two lanes, one box a visit and a copy
require 0 run traced --layer-offloading --num-slots 2 --trace "$work/trace.json" --trace-steps 2:3
is_json "$work/trace.json"
count_boxes() { grep -c "\"cat\": \"$1\"" "$work/trace.json"; }
holds "the trace has $(count_boxes visit) visits, wanted 2 steps of 8" [ "$(count_boxes visit)" = 16 ]
holds "the trace has $(count_boxes copy) copies, wanted 2 steps of 4" [ "$(count_boxes copy)" = 8 ]
for lane in compute transfer; do
    if grep -q "\"name\": \"$lane\"" "$work/trace.json"; then pass; else fail "the trace names no lane $lane"; fi
done
# Boxes of a lane do not overlap: [tid, start, end] of each, sorted.
awk '/"cat"/ { cat = $2 } /"dur"/ { dur = $2 + 0 } /"tid"/ { tid = $2 + 0 }
     /"ts"/ { if (cat != "") print tid, $2 + 0, $2 + dur; cat = "" }' "$work/trace.json" | sort -k 1,1n -k 2,2n > "$work/boxes"
holds "the trace's boxes could not be read" [ "$(wc -l < "$work/boxes")" -ge 24 ]
awk '$1 == lane && $2 < end - 0.01 { print } { lane = $1; end = $3 }' "$work/boxes" > "$output"
if [ -s "$output" ]; then fail "boxes of a lane overlap" "$output"; else pass; fi
if grep -q "\"bytes\": $slab_bytes" "$work/trace.json"; then pass; else fail "copies in the trace have no bytes"; fi

# --- bench_step: what its report says beside the times, and what it refuses before it times anything
bench() { "$build/bench_step" --hidden 32 --intermediate 64 --layers 4 --heads 2 --vocab 64 --sequence-len 16 \
    --micro-batch-size 1 --lora-r 2 --steps 1 --warmup 1 "$@"; }
require 0 bench
prints "bench_step" '^llama, 4 layers, hidden 32, 2 heads of 16, intermediate 64, vocabulary 64, '
for product in 'qkv +\[16, 96, 32\]' 'o +\[16, 32, 32\]' 'gate, up +\[16, 128, 32\]' 'down +\[16, 32, 64\]' 'head +\[16, 64, 32\]'; do
    prints "bench_step" "^  $product "
done
prints "bench_step" '^streamed step .*  N 4, R 2, P 1 '
prints "bench_step" '^moved 4\.0 slabs a step, 0 bytes back; '
if ! on_cuda; then
    prints "bench_step" '^streamed peak device memory ([0-9,]+) bytes, planned \1 bytes$'
fi
refuses "bench_step's rank" "--lora-r: .*1 to 4096" "$build/bench_step" --lora-r 4097
refuses "bench_step's width" "--intermediate: .*1 to 4194304" "$build/bench_step" --intermediate 4194305
refuses "bench_step's heads" "--heads 2 is no multiple of --kv-heads 3" bench --kv-heads 3

# --- the run directory
refuses "a second run in the same directory" "checkpoint-3.*--resume-from-checkpoint last" run plain
require 0 run limited --save-steps 1 --save-total-limit 2
holds "--save-total-limit 2 keeps $(cd "$work/limited" && echo checkpoint-*)" \
    [ "$(cd "$work/limited" && echo checkpoint-*)" = "checkpoint-2 checkpoint-3" ]
holds "temporaries are left" no_leftovers "$work"
finish
