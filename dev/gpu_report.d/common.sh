# What the parts of gpu_report.sh share: writing a section, running commands within time, verdicts. Sourced, not run.
#
# The caller has set dir, work, section, log, limit_s, part_start and failed.

say() { printf '%s\n' "$*" >> "$section"; }
code() {  # a file as a block
    say '```'
    cat "$1" >> "$section"
    say '```'
}
note() { echo "[$((SECONDS - part_start)) s] $*" | cut -c 1-240; }

# verdict NAME pass|fail|skip DETAIL
verdict() {
    case $2 in
        pass) say "- pass: $1${3:+ ($3)}" ;;
        skip) say "- **left out**: $1${3:+ ($3)}" ;;
        *) say "- **FAIL**: $1${3:+ ($3)}" ;;
    esac
    [ "$2" = pass ] || failed=$((failed + 1))
    note "$2 $1 ${3:-}"
}
# check NAME DETAIL CONDITION...: a condition as a command
check() {
    if "${@:3}"; then verdict "$1" pass "$2"; else verdict "$1" fail "$2"; fi
}
# True when the awk expression is.
holds() { awk "BEGIN { exit !($1) }"; }

left_s() { echo $((limit_s - (SECONDS - part_start))); }

# run NAME SECONDS COMMAND...: output to $work/NAME.out and the log, exit status to $work/NAME.status and $status.
# 124 or 137: the command ran past its time. `skip`: less than a quarter of its time was left to the part.
# In the background only the files tell the status.
run() {
    local name=$1 seconds=$2 left
    shift 2
    left=$(left_s)
    if [ "$left" -lt $((seconds / 4)) ]; then
        status=skip
        : > "$work/$name.out"
    else
        note "$name: $*"
        timeout -k 5 "$((left < seconds ? left : seconds))" "$@" > "$work/$name.out" 2>&1 < /dev/null
        status=$?
    fi
    echo "$status" > "$work/$name.status"
    {
        echo "== $name: $* (exit status $status)"
        cat "$work/$name.out"
    } >> "$log"
}
status_of() { cat "$work/$1.status" 2> /dev/null || echo skip; }
skipped() { [ "$(status_of "$1")" = skip ]; }

# The last lines of a failed command's output.
excerpt() { grep -v '^$' "$work/$1.out" | tail -n "${2:-15}" | cut -c 1-300 > "$work/excerpt" && code "$work/excerpt"; }

# build PRECISION DIRECTORY TARGETS...; compiles what it can although something fails
build() {
    run "build-$1" 400 make -k -j"$(nproc)" BACKEND=cuda "PRECISION=$1" "BUILD=$2" "${@:3}"
}
# A model of llama's kind as a config.json: DIRECTORY HIDDEN INTERMEDIATE LAYERS HEADS
write_config() {
    mkdir -p "$1"
    cat > "$1/config.json" << END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $2, "intermediate_size": $3,
 "num_hidden_layers": $4, "num_attention_heads": $5, "num_key_value_heads": $(($5 / 2)), "vocab_size": 260,
 "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": true, "dtype": "float32"}
END
}
# This project's own sources, as tokens in $work/data.
write_tokens() {
    run tokenize 60 "$bf16/tokenize" --output-dir "$work/data" $(find kernels offload train data -name '*.cpp' | sort) LICENSE
}
