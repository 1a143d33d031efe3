#!/bin/sh
# Runs build/tests and every tests/*_test.sh, and closes with one line that sums them up.
#
# A script gets the build directory as its argument and ends with its own line `N passed, N failed, N skipped`. These count
# as one failure: no such line; a bad exit status without a counted failure; more than half an hour, many times what the
# slowest takes.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
passed=0 failed=0 skipped=0

run() {
    { timeout --foreground 1800 "$@" 2>&1; echo "exit status $?"; } | tee "$output" | grep -v '^exit status [0-9]*$'
    status=$(sed -n 's/^exit status //p' "$output" | tail -n 1)
    counts=$(sed -n 's/^\([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed, \([0-9][0-9]*\) skipped$/\1 \2 \3/p' "$output" | tail -n 1)
    if [ -z "$counts" ]; then
        echo "FAIL: $1 printed no line 'N passed, N failed, N skipped' (exit status $status)"
        counts="0 1 0"
    fi
    set -- "$1" $counts
    if [ "$status" != 0 ] && [ "$3" = 0 ]; then
        echo "FAIL: $1 ended with exit status $status"
        set -- "$1" "$2" 1 "$4"
    fi
    passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
}

run "$build/tests"
for script in tests/*_test.sh; do
    echo "== $script"
    run "$script" "$build"
done
echo "== all tests"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
