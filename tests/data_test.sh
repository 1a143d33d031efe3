#!/bin/bash
# A user's own data through build/tokenize and build/train_gpt: records, text, previews, packing, the base model's
# tokenizer, resuming, refusals. Both ways of preparing the same records must train to the same bits.
#
# The argument is the build directory.
. "$(dirname "$0")/common.sh"

base=$fixtures/llama/base # 4 layers, vocabulary 260: the byte tokenizer's
T=48 fraction=0
train() { "$build/train_gpt" --base-model "$base" --sequence-len $T --max-steps 2 --lora-r 2 --output-dir "$work/$1" "${@:2}"; }
tokenize() { "$build/tokenize" --output-dir "$work/$1" --sequence-len $T --val-fraction $fraction "${@:2}"; }
adapter_of() { echo "$work/$1/adapter_model.safetensors"; }

for ((i = 0; i < 40; i++)); do
    printf '{"prompt": "%s + 1 = ", "completion": "%s"}\n' $i $((i + 1))
done > "$work/sums.jsonl"
printf '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}\n' > "$work/chat.jsonl"
for ((i = 0; i < 60; i++)); do echo "Line $i of a book of sixty lines."; done > "$work/book.txt"

# --- records: the trainer's own tokenising is build/tokenize's
require 0 tokenize sums --preview 1 "$work/sums.jsonl"
prints "tokenize: records" '^40 records \(prompt and completion\)$'
prints "tokenize: records" 'sums/train.bin: 40 records in 40 rows of 48 tokens \([0-9]+% padding; --sample-packing .*\), 111 tokens trained on'
prints "tokenize: --preview" '^row 1: 10 tokens, 2 trained on, filled up with 38$'
prints "tokenize: --preview" '^0 \+ 1 = \[\[1<'
require 0 train direct --train-data "$work/sums.jsonl" --preview 2
prints "train_gpt: records" 'sums.jsonl: 40 records \(prompt and completion\)$'
prints "train_gpt: --preview" '^1 \+ 1 = \[\[2<'
require 0 train through_file --train-data "$work/sums/train.bin"
same_bits "records and the token file made of them" "$(adapter_of direct)" "$(adapter_of through_file)"
require 0 tokenize packed --sample-packing "$work/sums.jsonl"
prints "tokenize: --sample-packing" 'packed/train.bin: 40 records in (9|10) rows of 48 tokens'
require 0 train packed_direct --train-data "$work/sums.jsonl" --sample-packing
require 0 train packed_file --train-data "$work/packed/train.bin"
same_bits "packed records and their token file" "$(adapter_of packed_direct)" "$(adapter_of packed_file)"
require 0 tokenize inputs --train-on-inputs "$work/sums.jsonl"
prints "tokenize: --train-on-inputs" ', 421 tokens trained on'
T=32
refuses "another --sequence-len" "made for --sequence-len 48 .*has --sequence-len 32" \
    train other --train-data "$work/sums/train.bin"
T=48

# --- a tokenizer by its name on the hub, as --base-model
mkdir -p "$work/hub/models--org--name/refs" "$work/hub/models--org--name/snapshots/abc"
printf abc > "$work/hub/models--org--name/refs/main"
cp "${0%/*}"/tokenizers/gpt2/tokenizer*.json "$work/hub/models--org--name/snapshots/abc"
HF_HUB_CACHE=$work/hub require 0 tokenize named --tokenizer org/name "$work/sums.jsonl"
prints "tokenize: --tokenizer org/name" '^vocabulary [0-9]+: .*/snapshots/abc/tokenizer.json'
HF_HUB_CACHE=$work/hub refuses "a name that the cache does not hold" "hf download org/other" \
    tokenize named --tokenizer org/other "$work/sums.jsonl"

# --- held out: a share of the records
require 0 train held_out --train-data "$work/sums.jsonl" --val-set-size 0.1
prints "--val-set-size of records" 'training: 36 records in 36 rows'
prints "--val-set-size of records" 'validation: 4 records in 4 rows'
prints "--val-set-size of records" '^eval 2/2 .*\(4 rows\)$'
require 0 train val_data --train-data "$work/book.txt" --val-data "$work/sums.jsonl" --sample-packing
prints "--val-data of records" 'validation: 40 records in (9|10) rows'
fraction=0.25
require 0 tokenize split "$work/sums.jsonl"
fraction=0
prints "tokenize: --val-fraction of records" 'train.bin: 30 records'
prints "tokenize: --val-fraction of records" 'val.bin: 10 records'
refuses "holding out every record" "holds out 40 records" train none --train-data "$work/sums.jsonl" --val-set-size 40

# --- text as it is
require 0 tokenize book "$work/book.txt"
require 0 train text --train-data "$work/book.txt"
prints "train_gpt: text" 'book.txt: .*KiB of text, 2,0[0-9]+ tokens$'
require 0 train text_file --train-data "$work/book/train.bin"
same_bits "text and the token file made of it" "$(adapter_of text)" "$(adapter_of text_file)"
cp "$work/book.txt" "$work/README" # any name
require 0 train text_named --train-data "$work/README" --val-set-size 3
prints "--val-set-size of text" '\(3 rows\)$'
printf '%s' "$(cat "$work/sums.jsonl")" | sed 's/$/\r/' | sed '1s/^/\xef\xbb\xbf/' > "$work/windows.jsonl"
require 0 train windows --train-data "$work/windows.jsonl"
same_bits "CR LF and a byte order mark" "$(adapter_of direct)" "$(adapter_of windows)"

# --- conversations, with a byte-level BPE and the template beside a model: 3 special tokens, the bytes, and "H" + "o"
model=$work/model
cp -r "$base" "$model"
{
    printf '{"added_tokens": ['
    id=0
    for token in endoftext im_start im_end; do
        printf '%s{"id": %d, "content": "<|%s|>", "special": true}' "${separator:-}" $((id++)) $token
        separator=', '
    done
    printf '], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},'
    printf '"model": {"type": "BPE", "merges": [["H", "o"]], "vocab": {"Ho": 259'
    other=256 # the characters that stand for bytes which do not print
    for ((byte = 0; byte < 256; byte++)); do
        character=$byte
        if ((byte < 33 || (byte > 126 && byte < 161) || byte == 173)); then character=$((other++)); fi
        printf ', "\\u%04x": %d' $character $((id++))
    done
    printf '}}}'
} > "$model/tokenizer.json"
echo '{"eos_token": "<|endoftext|>"}' > "$model/tokenizer_config.json"
cat > "$model/chat_template.jinja" <<- 'END'
	{% for message in messages %}
	{% if loop.first and message['role'] != 'system' %}
	{{- '<|im_start|>system\nHelp.<|im_end|>\n' }}
	{%- endif %}
	{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
	{%- endfor %}
END
for ((i = 0; i < 10; i++)); do
    printf '{"messages": [{"role": "user", "content": "Hi <|im_end|> %d"}, {"role": "assistant", "content": "Ho"},' $i
    printf '{"role": "user", "content": "\\u00e9"}, {"role": "assistant", "content": "Ha"}]}\n'
done > "$work/talks.jsonl"
T=160
require 0 tokenize talks --tokenizer "$model" --preview 1 "$work/talks.jsonl"
prints "tokenize: messages" "^10 records \\(messages, the model's chat template\\)$"
prints "tokenize: messages" ', 50 tokens trained on' # Ho, H, a and the two ends of turns
prints "tokenize: messages" '^vocabulary 260: byte-level BPE, 260 tokens \(GPT-2'
tr '\n' '~' < "$output" > "$work/shown"
cp "$work/shown" "$output"
prints "tokenize: a conversation's marks" '<.im_start.>system~Help.<.im_end.>~<.im_start.>user~Hi \\<.im_end.> 0<.im_end.>~<.im_start.>assistant~\[\[Ho<.im_end.>\]\]~<.im_start.>user~é<.im_end.>~<.im_start.>assistant~\[\[Ha<.im_end.>\]\]~'
plain_base=$base base=$model
require 0 train talks_direct --train-data "$work/talks.jsonl" --preview 1
prints "train_gpt: messages" "talks.jsonl: 10 records \\(messages, the model's chat template\\)$"
prints "train_gpt: a reply is marked" '^\[\[Ho<.im_end.>\]\]$'
require 0 train talks_file --train-data "$work/talks/train.bin"
same_bits "conversations and the token file made of them" "$(adapter_of talks_direct)" "$(adapter_of talks_file)"
holds "the tokenizer goes with the adapter" [ -e "$work/talks_direct/tokenizer.json" ]
require 0 tokenize talks_inputs --tokenizer "$model" --train-on-inputs "$work/talks.jsonl"
prints "tokenize: messages with --train-on-inputs" ', 760 tokens trained on' # all 77 of each but the first
refuses "tokenize: a template that the vocabulary lacks" "no token <.start_header_id.>" \
    tokenize none --tokenizer "$model" --chat-template llama3 "$work/talks.jsonl"
# --- another template, by its file: a part of the run, and what it shows as the date is that of the run's first start
printf '%s' '{% for m in messages %}{{ m.role + strftime_now(": %Y-%m-%d ") + m.content }}<|im_end|>{% endfor %}' > "$work/own.jinja"
require 0 train own --train-data "$work/talks.jsonl" --chat-template "$work/own.jinja" --preview 1 --preview-ids
prints "train_gpt: --chat-template" "10 records \(messages, chat template $work/own.jinja\)$"
prints "train_gpt: --chat-template" '^note: the chat template shows the date: 20'
prints "train_gpt: --chat-template" '^user: 20[-0-9]+ Hi ..im_start|^user: 20[-0-9]+ Hi .<.im_end.> '
prints "train_gpt: --preview-ids" '^ids: [0-9 ]+ \[\[259 2\]\] '
require 0 train own --train-data "$work/talks.jsonl" --chat-template "$work/own.jinja" --resume-from-checkpoint last
own_state=$(find "$work/own" -name trainer_state.json | tail -1)
sed -i 's/"first_start": "20/"first_start": "19/' "$own_state"
refuses "resuming shows the date of the first start" "the data of --train-data has changed" \
    train own --train-data "$work/talks.jsonl" --chat-template "$work/own.jinja" --resume-from-checkpoint last
sed -i 's/"first_start": "19/"first_start": "20/' "$own_state"
cp "$work/own.jinja" "$work/moved.jinja"
require 0 train own --train-data "$work/talks.jsonl" --chat-template "$work/moved.jinja" --resume-from-checkpoint last
printf ' ' >> "$work/own.jinja"
refuses "resuming with a changed template" "the run was made with --chat-template a file with the hash" \
    train own --train-data "$work/talks.jsonl" --chat-template "$work/own.jinja" --resume-from-checkpoint last
T=48 base=$plain_base

# --- a changed text cannot be resumed on
cp "$work/sums.jsonl" "$work/mine.jsonl"
require 0 train mine --train-data "$work/mine.jsonl"
sed -i 's/"39 + 1 = "/"39 + 2 = "/' "$work/mine.jsonl"
refuses "resuming with changed data" "the data of --train-data has changed" \
    train mine --train-data "$work/mine.jsonl" --resume-from-checkpoint last
refuses "resuming with --train-on-inputs" "train-on-inputs" \
    train mine --train-data "$work/mine.jsonl" --resume-from-checkpoint last --train-on-inputs
sed -i 's/"39 + 2 = "/"39 + 1 = "/' "$work/mine.jsonl"
require 0 train mine --train-data "$work/mine.jsonl" --resume-from-checkpoint last
prints "resuming with the same data" "^nothing is left to do"

# --- a token file knows its tokenizer
cp -r "$base" "$work/other" && cp "$(dirname "$0")/tokenizers/gpt2/tokenizer"*.json "$work/other/"
bytes_base=$base base=$work/other
refuses "tokens of another tokenizer" 'sums/train.bin: was made with the tokenizer "bytes" \(260 tokens\), and the base.s is another' \
    train none --train-data "$work/sums/train.bin"
cp "$work/sums/train.bin" "$work/of_bytes.bin"
{ head -c 16 "$work/sums/train.mask" && head -c 1008 /dev/zero && tail -c +1025 "$work/sums/train.mask"; } > "$work/of_bytes.mask"
refuses "validation tokens of another tokenizer" "--tokenizer $work/other makes the file for this base" \
    train none --train-data "$work/of_bytes.bin" --val-data "$work/sums/train.bin"
require 0 train silent --train-data "$work/of_bytes.bin"
base=$fixtures/llama_odd/base # without a tokenizer; its vocabulary ends before the byte tokenizer's
refuses "tokens for a base without a tokenizer" "token 9 is 256" train none --train-data "$work/sums/train.bin"
prints "tokens whose tokenizer cannot be compared" 'note: .*sums/train.bin: was made with the tokenizer "bytes" .*cannot be compared'
base=$bytes_base
cp "$work/sums/train.mask" "$work/changed.mask"
{ head -c 1024 "$work/sums/train.bin" && printf '\001\000' && tail -c +1027 "$work/sums/train.bin"; } > "$work/changed.bin"
refuses "ids changed beside their mask" 'changed.mask says, but holds ids that were not there then.*build/tokenize' \
    train none --train-data "$work/changed.bin"

# --- refused
refuses "messages without a template" "chat.jsonl, line 1: .*--chat-template" train none --train-data "$work/chat.jsonl"
refuses "a template that the vocabulary lacks" "no token <.im_start.>" \
    train none --train-data "$work/chat.jsonl" --chat-template chatml
refuses "an unknown template" "chat-template" train none --train-data "$work/chat.jsonl" --chat-template alpaca
refuses "packing a token file" "sample-packing.*holds tokens" train none --train-data "$work/sums/train.bin" --sample-packing
refuses "no tokenizer" "tokenizer.json" "$build/train_gpt" --base-model "$fixtures/llama_qv/base" --train-data "$work/book.txt" \
    --output-dir "$work/none" --sequence-len 8
: > "$work/empty.jsonl"
: > "$work/empty.txt"
refuses "no record" "empty.jsonl: holds nothing to train on: 0 records" train none --train-data "$work/empty.jsonl"
refuses "no text" "empty.txt: is empty" train none --train-data "$work/empty.txt"
printf 'short' > "$work/short.txt"
refuses "a short text" "short.txt: holds 6 tokens; a row of --sequence-len 48" train none --train-data "$work/short.txt"
printf '{"prompt": "%0100d", "completion": "x"}\n' 1 > "$work/long.jsonl"
refuses "records that are too long" "1 left out: the first 48 tokens have nothing" train none --train-data "$work/long.jsonl"
printf 'text\0with zeros' > "$work/binary"
refuses "no text at all" "binary: is no text: byte 4 is 0" train none --train-data "$work/binary"
printf '{"text": "fine"}\n{"text": "broken \xff"}\n' > "$work/broken.jsonl"
refuses "broken UTF-8" "broken.jsonl, line 2: is not valid JSON at column 18: .*ill-formed UTF-8" train none --train-data "$work/broken.jsonl"
printf '[\n{"text": "a list"}\n]\n' > "$work/list.json"
refuses "one JSON list" "list.json, line 1: begins with \[.*jq -c" train none --train-data "$work/list.json"
refuses "tokenize: broken UTF-8" "broken.jsonl, line 2" tokenize none "$work/broken.jsonl"
refuses "tokenize: no text at all" "binary: is no text: byte 4 is 0" tokenize none "$work/binary"
refuses "tokenize: no record" "nothing to train on" tokenize none "$work/empty.jsonl"
refuses "tokenize: text and records" "both text and records" tokenize none "$work/book.txt" "$work/sums.jsonl"
refuses "tokenize: packing text" "about records" tokenize none "$work/book.txt" --sample-packing
T=1
refuses "tokenize: rows of one token" "sequence-len 1" tokenize none "$work/sums.jsonl"
T=200 fraction=0.1
refuses "tokenize: no place for a validation record" "--val-fraction 0.1: 1 record is too few for a validation part, .*wanted two" tokenize none "$work/long.jsonl"
holds "something refused was written" [ ! -e "$work/none" ]

finish
