#!/bin/sh
# The example streams another network with offload/ and the runtime alone. Runs it, and checks the plugin's includes.
#
# The argument is the build directory. The program there was linked from those objects only.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
passed=0 failed=0 skipped=0

if grep -q '^cuda ' "$build/flags"; then
    echo "skipped: the example's own kernels are for the CPU (make BACKEND=cpu)"
    skipped=1
elif output=$("$build/example" 2>&1); then
    passed=$((passed + 1))
else
    echo "$output"
    echo "FAIL  $build/example"
    failed=$((failed + 1))
fi

# offload/ may include itself and kernels/runtime/, so that another trainer needs no more.
strays=$(grep -n '#include "' offload/*.h offload/*.cpp dev/example_main.cpp |
    grep -v -e '"offload/' -e '"kernels/runtime/')
if [ -z "$strays" ]; then
    passed=$((passed + 1))
else
    echo "$strays"
    echo "FAIL  the plugin includes more than the runtime"
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
