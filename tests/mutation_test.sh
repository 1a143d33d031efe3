#!/bin/sh
# The test of the tests: each wait that the streaming protocol rests on is removed in turn, and the tests, and
# ThreadSanitizer, must notice. READY and FREE guard the slots (layer_offload_manager.cpp), FILLED and DRAINED the ring
# through which slabs that cannot be page-locked are staged (staged_slabs.cpp).
#
# A test that passes without the wait it guards proves nothing. Builds the plugin and its tests with g++ alone, for the CPU
# backend whatever the build is otherwise: the protocol is the same source. The argument is the build directory.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${1:-build}/mutation
mkdir -p "$out" || exit 1
cxx=${CXX:-g++}
flags="-std=c++20 -O1 -g1 -Wall -Wextra -I. -pthread"
mutations="READY FREE FILLED DRAINED"
mutated="offload/layer_offload_manager.cpp offload/staged_slabs.cpp"
common="offload/slab_layout.cpp offload/stream_schedule.cpp offload/host_slabs.cpp offload/offload_trace.cpp
        kernels/runtime/runtime_cpu.cpp kernels/runtime/host_memory.cpp kernels/runtime/thread_pool.cpp
        kernels/runtime/memory_account.cpp tests/main.cpp tests/offload/test_offload_manager.cpp tests/offload/test_host_slabs.cpp"
# The cases made for this; the whole suite has more than these but finds nothing else.
cases="offload: random delays*,offload: late copies*,host slabs: pageable ones arrive*"
passed=0 failed=0 skipped=0

pass() { echo "PASS  $1"; passed=$((passed + 1)); }
fail() { echo "FAIL  $1"; failed=$((failed + 1)); }
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
}

# $1 plain or thread, $2 more compiler flags. Objects that no mutation touches are shared.
build() {
    mkdir -p "$out/$1"
    for source in $common; do
        echo "$cxx $flags $2 -c $source -o $out/$1/$(basename "$source" .cpp).o"
    done > "$out/$1/commands"
    for mutation in NONE $mutations; do
        mkdir -p "$out/$1/$mutation"
        for source in $mutated; do
            echo "$cxx $flags $2 -DSLABSTREAM_DROP_${mutation}_WAIT -c $source" \
                "-o $out/$1/$mutation/$(basename "$source" .cpp).o"
        done
    done >> "$out/$1/commands"
    xargs -P 2 -I '{}' sh -c '{}' < "$out/$1/commands" || return 1
    for mutation in NONE $mutations; do
        $cxx $flags $2 "$out/$1"/*.o "$out/$1/$mutation"/*.o -o "$out/$1/$mutation/tests" || return 1
    done
}

# $1 plain or thread, $2 mutation. Leaves the output in $log and the exit status in $status.
run() {
    log=$out/$1/$2/log
    TSAN_OPTIONS="halt_on_error=0" timeout 300 "$out/$1/$2/tests" --test-case="$cases" > "$log" 2>&1
    status=$?
}

if ! build plain ""; then
    fail "the tests do not build"
    finish
fi
run plain NONE
if [ $status = 0 ]; then pass "the tests pass as they are"; else fail "the tests do not pass as they are: $log"; fi
for mutation in $mutations; do
    run plain $mutation
    # 1: test cases failed. A crash or a time-out would be another number, and no proof.
    if [ $status = 1 ] && grep -Eq 'ERROR: (CHECK|REQUIRE)' "$log"; then
        pass "without the wait for $mutation the tests fail"
    else
        fail "without the wait for $mutation the tests end with status $status: $log"
    fi
done

echo 'int main() { return 0; }' > "$out/probe.cpp"
if ! { $cxx -fsanitize=thread "$out/probe.cpp" -o "$out/probe" && "$out/probe"; } > "$out/probe.log" 2>&1; then
    echo "skipped: ThreadSanitizer does not work with $cxx on this machine: $(head -n 1 "$out/probe.log")"
    skipped=5
    finish
fi
if ! build thread -fsanitize=thread; then
    fail "the tests do not build with ThreadSanitizer"
    finish
fi
run thread NONE
if [ $status = 0 ] && ! grep -q 'ThreadSanitizer' "$log"; then
    pass "ThreadSanitizer finds nothing in the code as it is"
else
    fail "ThreadSanitizer, or the tests under it, found something in the code as it is: $log"
fi
for mutation in $mutations; do
    run thread $mutation
    # The race in question: what is read while a copy, or the poison before it, is written there. Of a slot the reader is
    # a visit, of a chunk of the staging ring the other copy.
    case $mutation in
        READY | FREE) reader=toy_visit ;;
        *) reader=StagedSlabs ;;
    esac
    if grep -q 'WARNING: ThreadSanitizer: data race' "$log" && grep -q "$reader" "$log" &&
        grep -Eq 'mem(cpy|set)' "$log"; then
        pass "without the wait for $mutation ThreadSanitizer reports the race with the copy"
    else
        fail "without the wait for $mutation ThreadSanitizer does not report the race: $log"
    fi
done
finish
