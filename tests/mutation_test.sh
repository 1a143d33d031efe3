#!/bin/sh
# The test of the tests: each wait that streaming rests on is removed in turn. A test must fail, and ThreadSanitizer must
# report the race.
#
# A test that passes without the wait it guards proves nothing. A wait is one line of a source, marked `// guard: NAME` at
# its end; a copy without that line is compiled. Two marks are of other kinds: DECODED's line changes places with the
# next one, so that a slot is free before it was decoded; TURN is no wait, but what the work slab is known to hold, so
# there is no race to report. A mark that is not listed here is a failure, so a new wait cannot be forgotten. Builds with
# g++ alone, for the CPU backend: on a GPU the protocol is the same source. The argument is the build directory; the
# trainer's own waits are linked with its library, where that is one for the CPU.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
out=$build/mutation
mkdir -p "$out" || exit 1
cxx=${CXX:-g++}
plugin="READY FREE FILLED DRAINED ARRIVED ATTACH DETACH REFILL ABANDON DECODED TURN"
ranks="GIVEN TAKEN"
trainer="UPLOAD READ_BACK"
plugin="$plugin $ranks"
plugin_sources="$(ls offload/*.cpp kernels/runtime/*.cpp) tests/main.cpp tests/offload/test_offload_manager.cpp
    tests/offload/test_offload_encoded.cpp tests/offload/test_host_store.cpp tests/offload/test_waits.cpp
    tests/kernels/runtime/test_comm.cpp"
trainer_sources="tests/train/model/test_waits.cpp"
passed=0 failed=0 skipped=0

pass() { echo "PASS  $1"; passed=$((passed + 1)); }
fail() { echo "FAIL  $1"; failed=$((failed + 1)); }
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
}

# The cases made for a wait, and one side of each race in ThreadSanitizer's words; none: there is no race.
cases_of() {
    case $1 in
        READY | FREE)
            cases="offload: random delays*,offload: late copies*,encoded slabs: random delays*,encoded slabs: late copies*"
            reader="toy_visit toy_decode"
            ;;
        DECODED) cases="encoded slabs: late copies*" reader=toy_decode ;;
        TURN) cases="encoded slabs: late copies*" reader= ;;
        FILLED | DRAINED) cases="host store: pageable ones arrive*" reader=StagedSlabs ;;
        ARRIVED) cases="waits: layers brought back*" reader=toy_visit ;;
        ATTACH) cases="waits: attach frees*" reader=end_late ;;
        DETACH) cases="waits: detach frees*" reader=end_late ;;
        REFILL) cases="waits: a resident layer's copy ends*" reader=fill_toy ;;
        ABANDON) cases="waits: a resident layer that fails*" reader=end_late ;;
        GIVEN) cases="comm: late writers*" reader=write_numbers ;;
        TAKEN) cases="comm: late readers*" reader=write_numbers ;;
        UPLOAD) cases="waits: tokens stay*" reader=send_tokens ;;
        READ_BACK) cases="waits: a result is read*" reader=StepLoop::collect ;;
    esac
}
file_of() { grep -rlE "// guard: $1\$" --include='*.cpp' offload train kernels; }
# $1: the guard, $2: its source
mutate() {
    case $1 in
        DECODED) awk -v mark="// guard: $1" 'index($0, mark) {late = $0; next} {print} late {print late; late = ""}' "$2" ;;
        *) sed "/\/\/ guard: $1\$/d" "$2" ;;
    esac
}
object_of() { echo "$out/$(echo "$1" | tr / _).o"; }

marked=$(grep -rhoE '// guard: [A-Z_]+$' --include='*.cpp' --include='*.h' --include='*.cu' offload train kernels |
    sed 's/.*: //' | sort | tr '\n' ' ')
listed=$(for guard in $plugin $trainer; do echo "$guard"; done | sort | tr '\n' ' ')
if [ "$marked" = "$listed" ]; then
    pass "every marked wait is listed here, and marked once"
else
    fail "marked: $marked; listed: $listed"
    finish
fi

echo 'int main() { return 0; }' > "$out/probe.cpp"
sanitizer=-fsanitize=thread
if ! { $cxx $sanitizer "$out/probe.cpp" -o "$out/probe" && "$out/probe"; } > "$out/probe.log" 2>&1; then
    echo "skipped: ThreadSanitizer does not work with $cxx on this machine: $(head -n 1 "$out/probe.log")"
    sanitizer=
fi
# The trainer's library has no place in a build of plugin and tests alone. It may hold the kernels of a GPU, or need the
# other sanitizer.
if [ ! -f "$build/libslabstream.a" ] || grep -Eq '^cuda |fsanitize=address' "$build/flags"; then
    echo "skipped: $build has no library for the CPU: the trainer's waits $trainer stay as they are"
    skipped=$(echo "$trainer" | wc -w)
    trainer=
    trainer_sources=
    libraries=
else
    libraries=$(grep -oE ' -l[a-z0-9-]+| -fsanitize=[a-z]+' "$build/flags" | tr '\n' ' ')
fi
# Files with a mark of the trainer's, as they are: they take the place of the library's.
for guard in $trainer; do trainer_sources="$trainer_sources $(file_of "$guard")"; done
trainer_sources=$(echo "$trainer_sources" | tr ' ' '\n' | sort -u)

compile="$cxx -std=c++20 -O1 -g1 -Wall -Wextra -Wno-restrict -I. -pthread $sanitizer"
{
    for source in $plugin_sources $trainer_sources; do echo "$compile -c $source -o $(object_of "$source")"; done
    for guard in $plugin $trainer; do
        mkdir -p "$out/$guard"
        mutate "$guard" "$(file_of "$guard")" > "$out/$guard/source.cpp"
        echo "$compile -w -c $out/$guard/source.cpp -o $out/$guard/source.o"
    done
} > "$out/commands"
if ! xargs -P "$(nproc)" -I '{}' sh -c '{}' < "$out/commands"; then
    fail "the tests do not build"
    finish
fi

# $1: which wait is missing, or NONE. Leaves the output in $log and the exit status in $status.
run() {
    objects=
    original=
    mutated=
    if [ "$1" != NONE ]; then
        original=$(file_of "$1")
        mutated=$out/$1/source.o
    fi
    for source in $plugin_sources $trainer_sources; do
        if [ "$source" = "$original" ]; then objects="$objects $mutated"; else objects="$objects $(object_of "$source")"; fi
    done
    log=$out/$1.log
    # shellcheck disable=SC2086
    $cxx $sanitizer -pthread $objects ${trainer_sources:+"$build/libslabstream.a"} $libraries -o "$out/tests" || return 1
    TSAN_OPTIONS="halt_on_error=0 exitcode=0" timeout 300 "$out/tests" --test-case="$cases" > "$log" 2>&1
    status=$?
}

all=
for guard in $plugin $trainer; do
    cases_of "$guard"
    all="$all,$cases"
done
cases=${all#,}
run NONE
if [ $status = 0 ]; then pass "the tests pass as they are"; else fail "the tests do not pass as they are: $log"; fi
if [ -z "$sanitizer" ]; then
    skipped=$((skipped + 1))
elif ! grep -q 'ThreadSanitizer' "$log"; then
    pass "ThreadSanitizer finds nothing in the code as it is"
else
    fail "ThreadSanitizer found something in the code as it is: $log"
fi
for guard in $plugin $trainer; do
    cases_of "$guard"
    run "$guard"
    # 1: test cases failed. A crash or a time-out would be another number, and no proof.
    if [ $status = 1 ] && grep -Eq 'ERROR: (CHECK|REQUIRE)' "$log"; then
        pass "without the wait $guard the tests fail"
    else
        fail "without the wait $guard the tests end with status $status: $log"
    fi
    [ -n "$reader" ] || continue
    raced=yes
    grep -q 'WARNING: ThreadSanitizer: data race' "$log" || raced=
    for function in $reader; do grep -q "$function" "$log" || raced=; done
    if [ -z "$sanitizer" ]; then
        skipped=$((skipped + 1))
    elif [ -n "$raced" ]; then
        pass "without the wait $guard ThreadSanitizer reports the race"
    else
        fail "without the wait $guard ThreadSanitizer does not report the race: $log"
    fi
done
finish
