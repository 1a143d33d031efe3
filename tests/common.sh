# What the end-to-end tests share: counting, running a program and looking at what it did. Sourced, not run.
#
# A script begins with `. tests/common.sh` and ends with `finish`. It gets the build directory in $build, and a fresh
# directory in $work that is deleted at the end. Only failures print something, and `finish` the line that run_all.sh reads.
# Invariant: a program that ends by a signal, or that a sanitizer stops, never counts as one that refused.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
build=${1:-build}
fixtures=$PWD/tests/fixtures
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
status=0 output=$work/output  # of the last `attempt`

# Sanitizers exit with 1 by default, as a refusal does.
export ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1:exitcode=99" UBSAN_OPTIONS="exitcode=99:print_stacktrace=1"
# Some checks would take minutes, or make no sense, under a sanitizer.
sanitized() { grep -q fsanitize "$build/flags"; }
on_cuda() { grep -q '^cuda ' "$build/flags"; }

for program in train_gpt parity_gpt tokenize; do
    if [ ! -x "$build/$program" ]; then
        echo "FAIL: $build/$program is missing; run make BUILD=$build"
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
done

pass() { passed=$((passed + 1)); }
skip() {
    skipped=$((skipped + 1))
    echo "skipped: $1"
}
# The failure in words, and optionally a file whose end shows more.
fail() {
    failed=$((failed + 1))
    echo "FAIL: $1"
    if [ -n "${2:-}" ] && [ -e "$2" ]; then tail -n 4 "$2" | cut -c 1-600 | sed 's/^/    /'; fi
}
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
}

# Runs a command; its exit status goes to $status, its output to the file $output.
attempt() {
    "$@" > "$output" 2>&1 < /dev/null
    status=$?
}
# attempt, and the status must be the first argument. A pass is not counted: checks on the output follow.
require() {
    local wanted=$1
    shift
    attempt "$@"
    [ "$status" = "$wanted" ] && return 0
    fail "exit status $status, wanted $wanted: $*" "$output"
    return 1
}
# The last command printed a line that matches the extended regular expression.
prints() {
    if grep -Eq -e "$2" "$output"; then pass; else fail "$1: printed nothing like '$2'" "$output"; fi
}
prints_not() {
    if grep -Eq -e "$2" "$output"; then fail "$1: printed '$2'" "$output"; else pass; fi
}
# A condition as a command: `holds "name" [ 1 = 1 ]`.
holds() {
    local name=$1
    shift
    if "$@"; then pass; else fail "$name"; fi
}
same_bits() {
    if cmp -s "$2" "$3"; then pass; else fail "$1: $2 and $3 differ"; fi
}
# The command refuses: exit status 1, a message of the program's own that matches, and no sanitizer's report.
refuses() {
    local name=$1 message=$2
    shift 2
    attempt "$@"
    if [ "$status" != 1 ]; then
        fail "$name: exit status $status, wanted 1" "$output"
    elif grep -Eq 'Sanitizer|runtime error:|terminate called' "$output"; then
        fail "$name: crashed" "$output"
    elif ! grep -Eq -e "^[a-z_]+: .*$message" "$output"; then
        fail "$name: the message has nothing like '$message'" "$output"
    else
        pass
    fi
}

# Steps and losses of a log as text. Numbers are written so that they read back exactly: equal text means equal bits.
losses_of() {
    sed -nE 's/.*"loss":([^,}]*).*"step":([0-9]+).*/\2 loss \1/p' "$1"
}
eval_losses_of() {
    sed -nE 's/.*"eval_loss":([^,}]*).*"step":([0-9]+).*/\2 eval \1/p' "$1" | sort -u
}
# The number of layers of a case or a base.
layers_of() {
    sed -nE 's/.*"(num_hidden_layers|n_layer)": *([0-9]+).*/\2/p' "$1/base/config.json" | head -n 1
}
# No temporary of a save is left below a directory.
no_leftovers() {
    [ -z "$(find "$1" -name '.tmp-*' -print -quit)" ]
}
