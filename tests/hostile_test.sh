#!/bin/bash
# Files that lie and disks that are full. Each must be refused with exit status 1 and a message that names the file (and
# the tensor). No program may crash, take memory far beyond the file's size, or harm a checkpoint that is there.
#
# The argument is the build directory. Files are spoiled with head, dd and sed, so nothing else need be installed.
. "$(dirname "$0")/common.sh"

for ((i = 0; i < 100; i++)); do echo "$i bottles, of which $((i / 2)) are empty."; done > "$work/text"
"$build/tokenize" --output-dir "$work/data" --val-fraction 0 "$work/text" > "$output" 2>&1 ||
    { fail "tokenize" "$output" && finish; }
head -c 2000 "$work/text" > "$work/short_text"

# Address space for one process: a header that asks for more memory than its file could fill must not get it. Sanitizers
# and CUDA reserve far more than they use.
limit_kib=unlimited
if grep -q '^cpu ' "$build/flags" && ! sanitized; then limit_kib=4000000; fi
limited() { (ulimit -v $limit_kib && exec timeout 60 "$@"); }

# One small run with everything read from below $work/now, which the tests spoil.
reset() {
    rm -rf "$work/now"
    mkdir "$work/now"
    cp -r "$fixtures/llama/base" "$fixtures/llama/adapter" "$work/data" "$work/now/"
    if [ -d "$work/run" ]; then cp -r "$work/run" "$work/now/run"; fi
    chmod -R u+w "$work/now"
}
train() {
    limited "$build/train_gpt" --base-model "$work/now/base" --train-data "$work/now/data/train.bin" --layer-offloading --threads 2 \
        --gradient-accumulation-steps 2 --max-steps 3 "$@"
}
adapter=(--lora-r 2 --lora-target-modules "q_proj,down_proj")
start_fresh() { train --sequence-len 16 --save-steps 1 --output-dir "$work/now/fresh" "$@"; }
start_anew() { start_fresh "${adapter[@]}" "$@"; }
start_from_adapter() { start_fresh --adapter-in "$work/now/adapter"; }
resume() { train "${adapter[@]}" --sequence-len 16 --save-steps 1 --output-dir "$work/now/run" --resume-from-checkpoint "$1"; }
go_on() { resume last; }

reset
require 0 start_anew || finish
cp -r "$work/now/fresh" "$work/run"
rm -r "$work/run/checkpoint-3"
rm "$work/run/adapter_model.safetensors"

size_of() { stat -c %s "$1"; }
cut_to() { truncate -s "$2" "$1"; }
# Bytes in printf's notation into file $1 at offset $2.
poke() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
# A number as 4 or 8 little-endian bytes in printf's notation; bash counts modulo 2^64.
little_endian() {
    local n=$1 i
    for ((i = 0; i < $2; i++)); do
        printf '\\x%02x' $((n & 255))
        n=$((n >> 8))
    done
}
header_bytes() { od -A n -t u8 -N 8 "$1" | tr -d ' '; }
# The safetensors file $1 with the header $2 in place of its own; the data stay.
set_header() {
    local data_at=$((8 + $(header_bytes "$1")))
    { printf "$(little_endian ${#2} 8)" && printf '%s' "$2" && tail -c +$((data_at + 1)) "$1"; } > "$1.new"
    mv "$1.new" "$1"
}
header_of() { head -c $((8 + $(header_bytes "$1"))) "$1" | tail -c +9; }

# Spoils the safetensors file now/$1 in many ways; the rest of the arguments is a command that reads it.
spoil_safetensors() {
    local file=$1 path=$work/now/$1
    shift
    local name size header_size header tensor entry at length text change
    name=$(basename "$file")
    size=$(size_of "$path") header_size=$(header_bytes "$path") header=$(header_of "$path")
    entry=$(grep -oE '"[^"]+":\{"dtype"[^}]*\}' <<< "$header" | head -n 1)
    tensor=$(sed -E 's/^"([^"]+)".*/\1/' <<< "$entry")
    for at in 0 1 7 8 9 $((header_size / 2)) $((header_size + 7)) $((header_size + 8)) $((header_size + 9)) \
        $((size / 2)) $((size - 4)) $((size - 1)); do
        reset && cut_to "$path" $at
        refuses "$file cut to $at of $size bytes" "$name" "$@"
    done
    reset && printf 'more' >> "$path"
    refuses "$file with 4 bytes more" "$name" "$@"
    for length in 0 1 $((header_size - 1)) $((header_size + 1)) "$size" 4294967296 9223372036854775807 -1 -8; do
        reset && poke "$path" 0 "$(little_endian $length 8)"
        refuses "$file with header length $length" "$name" "$@"
    done
    for text in "" "null" "[]" "{}" "7" "{" "${header%\}*}" "$header}" "x$header" \
        "$(printf '{"a":%.0s' $(seq 5000))" "$(printf '[%.0s' $(seq 100000))" "${header/shape/$'\xff'}"; do
        reset && set_header "$path" "$text"
        refuses "$file with header ${text:0:20}..." "$name" "$@"
    done
    # Each line: what the first tensor's entry becomes, as a sed expression on it. The message must name the tensor.
    while read -r change; do
        reset
        text=$(sed -E "$change" <<< "$entry")
        [ "$text" = "$entry" ] && fail "$file: '$change' changes nothing in $entry"
        set_header "$path" "${header/"$entry"/"$text"}"
        refuses "$file with $text" "($name|${path%/*}): .*($tensor|another)" "$@"
    done <<- 'END'
		s/"F32"/"I32"/
		s/"F32"/"F64"/
		s/"F32"/"BF16"/
		s/"F32"/"Q4_K"/
		s/"F32"/32/
		s/"shape":\[[0-9,]*\]/"shape":[1]/
		s/"shape":\[[0-9,]*\]/"shape":[]/
		s/"shape":\[[0-9,]*\]/"shape":7/
		s/"shape":\[[0-9,]*\]/"shape":[-4,64]/
		s/"shape":\[[0-9,]*\]/"shape":[4.5,64]/
		s/"shape":\[[0-9,]*\]/"shape":[4294967296,4294967296]/
		s/"shape":\[[0-9,]*\]/"shape":[4611686018427387904,4]/
		s/"shape":\[[0-9,]*\]/"shape":[18446744073709551616,1]/
		s/"shape":\[([0-9]*),([0-9]*)\]/"shape":[\2,\1]/
		s/"shape":\[([0-9]*),([0-9]*)\]/"shape":[\1,1,\2]/
		s/"data_offsets":\[0,/"data_offsets":[4,/
		s/"data_offsets":\[0,/"data_offsets":[-4,/
		s/"data_offsets":\[0,/"data_offsets":["0",/
		s/"data_offsets":\[0,([0-9]*)\]/"data_offsets":[\1,0]/
		s/"data_offsets":\[0,([0-9]*)\]/"data_offsets":[0]/
		s/"data_offsets":\[0,([0-9]*)\]/"data_offsets":[0,18446744073709551615]/
		s/,"data_offsets":\[0,([0-9]*)\]//
		s/(.*)/\1,\1/
		s/^"/"another./
	END
    for at in '\x00\x00\xc0\x7f' '\x00\x00\x80\x7f' '\x00\x00\x80\xff' '\xff\xff\xff\xff'; do
        reset && poke "$path" $((8 + header_size)) "$at"
        refuses "$file with first value $at" "$name.*$tensor" "$@"
        reset && poke "$path" $((size - 4)) "$at"
        refuses "$file with last value $at" "$name.*tensor" "$@"
    done
    reset && rm "$path" && mkdir "$path"
    refuses "$file is a directory" "$name" "$@"
    reset && rm "$path" && mkfifo "$path"
    refuses "$file is a pipe" "$name" "$@"
    reset && rm "$path"
    refuses "$file is missing" "${path%/*}" "$@"
}

# Spoils the JSON file now/$1 in ways that no JSON file survives; the rest of the arguments is a command that reads it.
spoil_json() {
    local file=$1 path=$work/now/$1
    shift
    local name size at text
    name=$(basename "$file") size=$(size_of "$path")
    for at in 0 1 2 $((size / 4)) $((size / 2)) $((size - 3)); do
        reset && cut_to "$path" "$at"
        refuses "$file cut to $at of $size bytes" "$name" "$@"
    done
    for text in "null" "[]" "{}" '"x"' '{"a":1,"a":1}' '{"a":NaN}' $'{"a":"\xff"}' "$(printf '[%.0s' $(seq 100000))" \
        "$(head -c 3000 "$build/train_gpt" | tr -d '\0')"; do
        reset && printf '%s' "$text" > "$path"
        refuses "$file with ${text:0:20}" "$name" "$@"
    done
    reset && rm "$path" && ln -s /dev/zero "$path"
    refuses "$file is an endless device" "$name" "$@"
    reset && rm "$path"
    refuses "$file is missing" "$name" "$@"
}
# Reads lines `sed expression | wanted message` from standard input and applies each to the JSON file now/$1.
change_json() {
    local path=$work/now/$1 change wanted
    shift
    while IFS='|' read -r change wanted; do
        reset && cp "$path" "$work/before"
        sed -E -i "$change" "$path"
        if cmp -s "$path" "$work/before"; then fail "'$change' changes nothing in $path"; fi
        refuses "$(basename "$path") after $change" "$wanted" "$@"
    done
}

spoil_safetensors base/model.safetensors start_anew
spoil_json base/config.json start_anew
change_json base/config.json start_anew <<- 'END'
	s/"hidden_size": 64/"hidden_size": 0/|config.json.*hidden_size
	s/"hidden_size": 64/"hidden_size": -64/|config.json.*hidden_size
	s/"hidden_size": 64/"hidden_size": 64.5/|config.json.*hidden_size
	s/"hidden_size": 64/"hidden_size": "64"/|config.json.*hidden_size
	s/"hidden_size": 64/"hidden_size": 1e99/|config.json.*hidden_size
	s/"hidden_size": 64/"hidden_size": 99999999999999999999/|config.json.*hidden_size
	s/"hidden_size": 64/"hidden_size": 128/|model.safetensors.*tensor.*shape
	s/"hidden_size": 64/"hidden_size": 64, "hidden_size": 64/|config.json.*hidden_size
	s/"num_hidden_layers": 4/"num_hidden_layers": 0/|config.json.*num_hidden_layers
	s/"num_hidden_layers": 4/"num_hidden_layers": 1000000000/|config.json.*num_hidden_layers
	s/"num_hidden_layers": 4/"num_hidden_layers": 5/|tensor "model.layers.4
	s/"num_hidden_layers": 4/"num_hidden_layers": 3/|tensor "model.layers.3
	s/"num_attention_heads": 4/"num_attention_heads": 3/|config.json.*num_
	s/"num_attention_heads": 4/"num_attention_heads": 0/|config.json.*num_attention_heads
	s/"num_key_value_heads": 2/"num_key_value_heads": 3/|config.json.*num_
	s/"head_dim": 16/"head_dim": 15/|config.json.*head_dim
	s/"head_dim": 16/"head_dim": 32/|tensor "model.layers.0.self_attn
	s/"intermediate_size": 176/"intermediate_size": 177/|tensor "model.layers.0.mlp
	s/"vocab_size": 260/"vocab_size": 0/|config.json.*vocab_size
	s/"vocab_size": 260/"vocab_size": 2000000000/|config.json.*vocab_size
	s/"vocab_size": 260/"vocab_size": 259/|tensor "(lm_head|model.embed_tokens).weight"
	s/"vocab_size": 260/"vocab_size": 100/|vocabulary
	s/"rms_norm_eps": [0-9e.-]+/"rms_norm_eps": -1/|config.json.*rms_norm_eps
	s/"rms_norm_eps": [0-9e.-]+/"rms_norm_eps": "small"/|config.json.*rms_norm_eps
	s/"hidden_act": "silu"/"hidden_act": "relu"/|config.json.*hidden_act
	s/"model_type": "llama"/"model_type": "bert"/|config.json.*model_type
	s/"model_type": "llama",//|config.json.*model_type
	s/"rope_theta": 10000.0/"rope_theta": 0/|config.json.*rope_theta
	s/"rope_type": "default"/"rope_type": "yarn"/|config.json.*rope_type
	s/"rope_type": "default"/"rope_type": "llama3"/|config.json.*rope_parameters
	s/"tie_word_embeddings": false/"tie_word_embeddings": "no"/|config.json.*tie_word_embeddings
	s/"use_cache": true/"quantization_config": {"bits": 4}/|config.json.*quantization_config
	s/"use_cache": true/"attn_logit_softcapping": 50.0/|config.json.*attn_logit_softcapping
END

spoil_safetensors adapter/adapter_model.safetensors start_from_adapter
spoil_json adapter/adapter_config.json start_from_adapter
change_json adapter/adapter_config.json start_from_adapter <<- 'END'
	s/"peft_type": "LORA"/"peft_type": "IA3"/|adapter_config.json.*peft_type
	s/"r": 4/"r": 0/|adapter_config.json.*"r"
	s/"r": 4/"r": 1000000000/|adapter_config.json.*"r"
	s/"r": 4/"r": 4.5/|adapter_config.json.*"r"
	s/"r": 4/"r": 5/|adapter_model.safetensors.*tensor
	s/"lora_alpha": 8/"lora_alpha": -8/|adapter_config.json.*lora_alpha
	s/"lora_alpha": 8/"lora_alpha": "8"/|adapter_config.json.*lora_alpha
	s/"lora_dropout": 0.0/"lora_dropout": 2/|adapter_config.json.*lora_dropout
	s/"use_dora": false/"use_dora": true/|adapter_config.json.*use_dora
	s/"bias": "none"/"bias": "all"/|adapter_config.json.*bias
	s/"rank_pattern": \{\}/"rank_pattern": {"q_proj": 2}/|adapter_config.json.*rank_pattern
	s/"alpha_pattern": \{\}/"alpha_pattern": {"q_proj": 2}/|adapter_config.json.*alpha_pattern
	s/"modules_to_save": null/"modules_to_save": ["lm_head"]/|adapter_config.json.*modules_to_save
	s/"layers_to_transform": null/"layers_to_transform": [4]/|adapter_config.json.*layers_to_transform
	s/"layers_to_transform": null/"layers_to_transform": ["0"]/|adapter_config.json.*layers_to_transform
	s/"gate_proj"/"gate_prog"/|adapter_config.json.*gate_prog
	s/"gate_proj"/7/|adapter_config.json.*target_modules
	s/"q_proj"/"v_proj"/|adapter_model.safetensors.*q_proj
	s/"target_modules": \[/"target_modules": ".*_proj", "x": [/|adapter_config.json.*(target_modules|"x")
END

# Bases in blocks. A byte that is changed gives other weights, or a message that names the file; never a crash.
train_as_is() { train --slab-format as-is --adapter lora "${adapter[@]}" --sequence-len 16 --output-dir "$work/now/fresh"; }
stands() {  # NAME MESSAGE COMMAND...: it runs to its end or refuses
    local name=$1 message=$2
    shift 2
    attempt "$@"
    if [ "$status" != 0 ] && [ "$status" != 1 ]; then
        fail "$name: exit status $status" "$output"
    elif grep -Eq 'Sanitizer|runtime error:|terminate called' "$output"; then
        fail "$name: crashed" "$output"
    elif [ "$status" = 1 ] && ! grep -Eq -e "^[a-z_]+: .*$message" "$output"; then
        fail "$name: the message has nothing like '$message'" "$output"
    else
        pass
    fi
}
reset_4bit() {
    reset
    cp "$PWD/tests/blocks/llama_4bit/"* "$work/now/base/"
}
weights=$work/now/base/model.safetensors
reset_4bit && require 0 train_as_is && prints "a 4-bit directory" 'slabs: as in the file \(NF4 100%\)'
size=$(size_of "$weights") header_size=$(header_bytes "$weights") header=$(header_of "$weights")
for at in 0 8 $((header_size / 2)) $((header_size + 7)) $((header_size + 9)) $((size / 2)) $((size - 1)); do
    reset_4bit && cut_to "$weights" $at
    refuses "4-bit weights cut to $at of $size bytes" "model.safetensors" train_as_is
done
key=model.layers.0.mlp.gate_proj.weight
for beside in .absmax .quant_map .nested_absmax .nested_quant_map .quant_state.bitsandbytes__nf4; do
    entry=$(grep -oE "\"$key$beside\":\{\"dtype\"[^}]*\}" <<< "$header")
    while read -r change; do
        text=$(sed -E "$change" <<< "$entry")
        [ "$text" = "$entry" ] && continue
        reset_4bit && set_header "$weights" "${header/"$entry"/"$text"}"
        refuses "4-bit weights with $text" "model.safetensors: .*($key|another)" train_as_is
    done <<- 'END'
		s/"F32"/"I32"/
		s/"U8"/"I8"/
		s/"shape":\[([0-9]*)\]/"shape":[1]/
		s/"shape":\[([0-9]*)\]/"shape":[1,\1,1,1,1,1,1,1,1,1]/
		s/"shape":\[([0-9]*)\]/"shape":[4611686018427387904]/
		s/"data_offsets":\[([0-9]*),([0-9]*)\]/"data_offsets":[\2,\1]/
		s/(.*)/\1,\1/
		s/^"[a-z.]*layers/"another/
	END
done
state_at=$(grep -abo '"quant_type": "nf4"' "$weights" | head -n 1 | cut -d: -f1)
for change in '0 x' '15 fp4' '15 nf8' '19 ]' '22 "blocksizE' '35 65' '35 0,' '50 7' '100 9'; do
    reset_4bit && poke "$weights" $((state_at + ${change%% *})) "${change#* }"
    stands "a 4-bit state with ${change#* } at ${change%% *}" "model.safetensors" train_as_is
done
for ((i = 1; i <= 100; i++)); do  # bytes of header and data, spread over the file
    reset_4bit && poke "$weights" $((i * i * 7919 % size)) "\\x$(printf %02x $((i * 97 % 256)))"
    stands "4-bit weights with byte $((i * i * 7919 % size)) changed" "(model.safetensors|now/base|gradient was exactly 0)" train_as_is
done
reset_4bit
change_json_4bit() {
    while IFS='|' read -r change wanted; do
        reset_4bit && sed -E -i "$change" "$work/now/base/config.json"
        refuses "config.json after $change" "$wanted" train_as_is
    done
}
change_json_4bit <<- 'END'
	s/"nf4"/"fp4"/|config.json.*bnb_4bit_quant_type
	s/"bitsandbytes"/"gptq"/|config.json.*quantization_config
	s/"load_in_4bit": true/"load_in_4bit": false/|config.json.*load_in_4bit
	s/"load_in_4bit": true/"load_in_4bit": 7/|config.json.*load_in_4bit
	s/"uint8"/"bfloat16"/|config.json.*bnb_4bit_quant_storage
	s/"quantization_config": \{/"quantization_config": 7, "x": {/|config.json
END

gguf=$work/now/mixed.gguf
reset_gguf() { reset && cp "$PWD/tests/gguf/llama_mixed/model.gguf" "$gguf" && chmod u+w "$gguf"; }
train_gguf() {
    limited "$build/train_gpt" --base-model "$gguf" --train-data "$work/tokens20.bin" --layer-offloading --threads 2 \
        --max-steps 1 --sequence-len 16 --lora-r 2 --output-dir "$work/now/fresh"
}
{ # tokens below the 20 of that model
    printf '%b' '\x88\xd8\x34\x01\x01\x00\x00\x00\x40\x00\x00\x00'
    head -c 1012 /dev/zero
    for ((i = 0; i < 64; i++)); do printf '%b' "\\x$(printf %02x $((i * i % 19)))\\x00"; done
} > "$work/tokens20.bin"
reset_gguf && require 0 train_gguf && prints "a GGUF's blocks" 'slabs: as in the file \(Q'
size=$(size_of "$gguf")
for ((i = 1; i <= 20; i++)); do
    reset_gguf && cut_to "$gguf" $((size * i / 21))
    refuses "a GGUF file cut to $((size * i / 21)) of $size bytes" "mixed.gguf" train_gguf
done
for ((i = 1; i <= 100; i++)); do  # two thirds of them in the metadata and the table of tensors
    at=$((i * i * 7919 % (i % 3 == 0 ? size : 6000)))
    reset_gguf && poke "$gguf" $at "\\x$(printf %02x $((i * 97 % 256)))"
    stands "a GGUF file with byte $at changed" "(mixed.gguf|tokens20.bin|sequence-len)" train_gguf
done

# Token files. The header: 256 little-endian int32; magic, version, count.
tokens=$work/now/data/train.bin mask=$work/now/data/train.mask
reset
size=$(size_of "$tokens") mask_size=$(size_of "$mask") count=$(($(size_of "$mask") - 1024))
for at in 0 1 4 11 1023 1024 1025 $((size / 2)) $((size - 2)) $((size - 1)); do
    reset && cut_to "$tokens" "$at"
    refuses "train.bin cut to $at of $size bytes" "train.bin" start_anew
done
for at in 0 1023 1024 $((mask_size / 2)) $((mask_size - 1)); do
    reset && cut_to "$mask" "$at"
    refuses "train.mask cut to $at of $mask_size bytes" "train.mask" start_anew
done
for field in "0 0" "0 1835297907" "0 -1" "4 0" "4 7" "8 0" "8 $((count - 1))" "8 $((count + 1))" "8 -1" "8 2147483647"; do
    reset && poke "$tokens" "${field% *}" "$(little_endian "${field#* }" 4)"
    refuses "train.bin with ${field#* } at ${field% *}" "train.(bin|mask)" start_anew
    reset && poke "$mask" "${field% *}" "$(little_endian "${field#* }" 4)"
    refuses "train.mask with ${field#* } at ${field% *}" "train.mask" start_anew
done
reset && poke "$tokens" $((1024 + 2 * 5)) '\xff\xff'
refuses "a token beyond the vocabulary" "train.bin.*token 5 is 65535.*259" start_anew
reset && poke "$mask" $((1024 + 9)) '\x04'
refuses "a mask byte of no meaning" "train.mask.*offset 1033" start_anew
reset && cp "$work/text" "$tokens"
refuses "text for tokens" "train.bin.*tokenize" start_anew
reset && refuses "rows longer than the file" "train.bin.*sequence-len" \
    train --sequence-len 100000 --output-dir "$work/now/fresh"
reset && rm "$tokens" && mkdir "$tokens"
refuses "a directory for tokens" "train.bin" start_anew
reset && rm "$tokens" && mkfifo "$tokens"
refuses "a pipe for tokens" "train.bin" start_anew
reset && rm "$mask" && ln -s nowhere "$mask"
refuses "a mask that is a dangling link" "train.mask" start_anew
reset && refuses "validation tokens that are missing" "none.bin" start_anew --val-data "$work/none.bin"
# Data without targets is no error: a message says so, and no number becomes NaN.
reset && head -c 1024 "$mask" > "$mask.new" && head -c "$count" /dev/zero >> "$mask.new" && mv "$mask.new" "$mask"
require 0 start_anew && prints "a mask without targets" "no targets"

# A limit on address space that leaves too little for products: OpenBLAS would retry endlessly.
if grep -q SLABSTREAM_OPENBLAS "$build/flags" && ! on_cuda && ! sanitized; then
    little_space() { (ulimit -v "$1" && exec timeout -s KILL 60 "${@:2}"); }
    for kib in 300000 450000 600000; do
        refuses "ulimit -v $kib" "ulimit -v" little_space $kib "$build/train_gpt" --base-model "$fixtures/llama/base" \
            --train-data "$work/data/train.bin" --sequence-len 16 --max-steps 2 --threads 4 --output-dir "$work/little"
        refuses "parity_gpt under ulimit -v $kib" "ulimit -v" little_space $kib "$build/parity_gpt" --threads 4 \
            "$fixtures/llama"
    done
    # OpenBLAS asks for more than that at its start, on threads that it waits for at the end.
    for kib in 80000 120000 160000; do
        for program in train_gpt export_gpt logits_gpt bench_step parity_gpt tokenize; do
            require 0 little_space $kib "$build/$program" --help && prints "$program under ulimit -v $kib" "--help"
        done
        refuses "ulimit -v $kib" "ulimit -v" little_space $kib "$build/train_gpt" --base-model "$fixtures/llama/base" \
            --train-data "$work/data/train.bin" --sequence-len 16 --max-steps 2 --threads 1 --output-dir "$work/little"
    done
    little_data() { (ulimit -d "$1" && exec timeout -s KILL 60 "${@:2}"); }
    for kib in 20000 250000; do
        refuses "ulimit -d $kib" "ulimit .*-d" little_data $kib "$build/train_gpt" --base-model "$fixtures/llama/base" \
            --train-data "$work/data/train.bin" --sequence-len 16 --max-steps 2 --threads 2 --output-dir "$work/little"
    done
else
    skip "too little address space: not an OpenBLAS build, or a sanitizer's, which reserves more"
fi

# Checkpoints. Nothing that reading one meets may change it or the one before.
spoil_safetensors run/checkpoint-2/optimizer.safetensors go_on
spoil_safetensors run/checkpoint-2/adapter_model.safetensors go_on
state=run/checkpoint-2/trainer_state.json
change_json $state go_on <<- 'END'
	s/"global_step": 2/"global_step": -2/|trainer_state.json
	s/"global_step": 2/"global_step": 1/|trainer_state.json.*global_step
	s/"global_step": 2/"global_step": "2"/|trainer_state.json
	s/"global_step": 2/"global_step": 2.5/|trainer_state.json.*global_step
	s/"global_step": 2/"global_step": true/|trainer_state.json.*global_step
	s/"global_step": 2/"global_step": 1e300/|trainer_state.json.*global_step
	s/"global_step": 2/"global_step": 9223372036854775808/|trainer_state.json.*global_step
	s/"global_step": 2/"global_step": 1000000/|trainer_state.json.*global_step
	s/"next_sample": 4/"next_sample": -1/|trainer_state.json.*next_sample
	s/"next_sample": 4/"next_sample": 5/|trainer_state.json.*next_sample
	s/"applied_updates": 2/"applied_updates": 4294967298/|trainer_state.json.*applied_updates
	s/"applied_updates": 2/"applied_updates": 3/|trainer_state.json.*applied_updates
	s/"bad_steps_in_row": 0/"bad_steps_in_row": -1/|trainer_state.json.*bad_steps_in_row
	s/"bad_steps_in_row": 0,//|trainer_state.json.*bad_steps_in_row
	s/"identity": \{/"identity": 7, "x": {/|trainer_state.json
	s/"--seed": "42"/"--seed": 42/|trainer_state.json
	s/"--seed": "42"/"--seed": "43"/|trainer_state.json.*--seed 43
	s/"--seed": "42",//|trainer_state.json.*--seed
END
spoil_json $state resume "$work/now/run/checkpoint-2"
reset && rm -r "$work/now/run/checkpoint-2" && : > "$work/now/run/checkpoint-2"
refuses "a file for a checkpoint" "checkpoint-2" resume "$work/now/run/checkpoint-2"
refuses "a file in the way of the next checkpoint" "checkpoint-2" go_on
# After all that the checkpoint is still the one that was written.
reset && cut_to "$work/now/run/checkpoint-2/optimizer.safetensors" 1000
refuses "a damaged last checkpoint" "optimizer.safetensors" go_on
holds "a refused checkpoint changed" [ "$(size_of "$work/now/run/checkpoint-2/optimizer.safetensors")" = 1000 ]
for file in adapter_model.safetensors optimizer.safetensors trainer_state.json; do
    same_bits "the checkpoint before a refused one" "$work/now/run/checkpoint-1/$file" "$work/run/checkpoint-1/$file"
done

# Places that cannot be written.
reset && : > "$work/now/file"
refuses "--output-dir is a file" "$work/now/file" train --sequence-len 16 --output-dir "$work/now/file"
refuses "--output-dir below a file" "$work/now/file/run" train --sequence-len 16 --output-dir "$work/now/file/run"
refuses "--output-dir in /proc" "/proc/none" train --sequence-len 16 --output-dir /proc/none
refuses "--log is a full device" "/dev/full" start_anew --log /dev/full
refuses "--log is a directory" "$work/now/base" start_anew --log "$work/now/base"
refuses "--log is an endless device" "/dev/zero" start_anew --log /dev/zero
reset && cp "$work/text" "$work/now/notes"
refuses "--log is no log" "$work/now/notes" start_anew --log "$work/now/notes"
same_bits "--log is no log" "$work/now/notes" "$work/text"
: > "$work/now/file"
refuses "--trace below a file" "$work/now/file/t.json" start_anew --trace "$work/now/file/t.json"
reset && mkdir "$work/now/fresh" && : > "$work/now/fresh/checkpoint-1"
refuses "a file in a checkpoint's way" "checkpoint-1" start_anew
reset && mkdir -p "$work/now/fresh/adapter_model.safetensors"
refuses "a directory in the adapter's way" "adapter_model.safetensors" start_anew
reset && mkdir -p "$work/now/fresh/config.toml"
refuses "a directory in the way of config.toml" "config.toml" start_anew

# A disk that is full: writes beyond a size fail. Earlier saves stay. With room again the run ends in the bits of an
# undisturbed one.
on_small_disk() {  # cat keeps what is printed out of the limit
    (ulimit -f "$1" && "${@:2}") 2>&1 | cat
    return "${PIPESTATUS[0]}"
}
for kib in 0 1 2 4 8 16; do
    reset
    refuses "resuming on a disk with $kib KiB left" "(run|now)/.*(File too large|full)" on_small_disk $kib go_on
    if [ $kib -ge 4 ]; then prints "a full disk" 'not saved: .*checkpoint-2; .*--resume-from-checkpoint last'; fi
    prints_not "a full disk" '[.?][.]'
    holds "a full disk leaves temporaries" no_leftovers "$work/now/run"
    for file in adapter_model.safetensors optimizer.safetensors trainer_state.json; do
        same_bits "a full disk" "$work/now/run/checkpoint-2/$file" "$work/run/checkpoint-2/$file"
    done
done
require 0 go_on && cp "$work/now/run/adapter_model.safetensors" "$work/after_full_disk"
reset && require 0 go_on &&
    same_bits "going on after a full disk" "$work/now/run/adapter_model.safetensors" "$work/after_full_disk"
mkdir "$work/disk"
if mount -t tmpfs -o size=40k none "$work/disk" 2> "$output"; then
    refuses "a full file system" "$work/disk/run.*No space left" \
        train --sequence-len 16 --save-steps 1 --output-dir "$work/disk/run"
    holds "a full file system holds temporaries" no_leftovers "$work/disk"
    umount "$work/disk"
else
    skip "a full file system: a small one cannot be mounted here"
fi

# The case files of parity_gpt.
spoil_case() {
    rm -rf "$work/case"
    cp -r "$fixtures/llama_qv" "$work/case"
    chmod -R u+w "$work/case"
}
compare_case() { limited "$build/parity_gpt" "$work/case"; }
for at in 0 100 1000 10000; do
    spoil_case && cut_to "$work/case/expected.safetensors" $at
    refuses "expected.safetensors cut to $at" "expected.safetensors" compare_case
done
for change in 's/"steps": 5/"steps": 6/' 's/"steps": 5/"steps": 1000000000/' 's/"accum": 1/"accum": 0/' 's/"B": 2/"B": 3/' \
    's/"T": 24/"T": -24/' 's/"lr"/"rate"/' 's/"losses"/"loss"/' 's/adamw/sgd/'; do
    spoil_case && sed -E -i "$change" "$work/case/expected.json"
    refuses "expected.json after $change" "(expected.json|expected.safetensors|sequence-len)" compare_case
done

# The tokenizer.
refuses "tokenize: no such text" "$work/none" "$build/tokenize" --output-dir "$work/other" "$work/none"
refuses "tokenize: a directory for text" "$work" "$build/tokenize" --output-dir "$work/other" "$work"
refuses "tokenize: --output-dir is a file" "$work/text" "$build/tokenize" --output-dir "$work/text" "$work/short_text"
refuses "tokenize: a full disk" "train.bin" on_small_disk 2 "$build/tokenize" --output-dir "$work/other" "$work/text"
holds "tokenize: a full disk leaves temporaries" no_leftovers "$work/other"
holds "tokenize: a full disk leaves half a file" [ ! -e "$work/other/train.bin" ]
finish
