#!/bin/sh
# Installs what building and testing need and this machine lacks: compiler, make and five libraries from Debian, and the text
# that the demo trains on. Says what it will install before it does. Quick when nothing is missing.
# Never installs GPU drivers or the CUDA toolkit. Arguments: further packages to have.
set -u
packages="g++ make libcli11-dev nlohmann-json3-dev doctest-dev libopenblas-dev libpcre2-dev bible-kjv $*"

if nvidia-smi -L >/dev/null 2>&1 && ! command -v nvcc >/dev/null 2>&1 && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    echo "A GPU is here, but no nvcc: the build will be for the CPU. To use the GPU install the CUDA toolkit"
    echo "(https://developer.nvidia.com/cuda-downloads) and put its bin/ folder into PATH."
fi

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    echo "This is not a Debian or Ubuntu system. Needed, by whatever names your system has for them:"
    echo "  g++ 12 or newer, GNU make, CLI11, nlohmann/json, doctest, PCRE2 (8-bit); for speed OpenBLAS; for the demo the King James Bible"
    echo "  (or run the demo with TEXT=file)."
    missing=
    for tool in g++ make; do command -v $tool >/dev/null 2>&1 || missing="$missing $tool"; done
    for header in CLI/CLI.hpp nlohmann/json.hpp doctest/doctest.h pcre2.h; do
        echo "#include <$header>" | g++ -std=c++20 -DPCRE2_CODE_UNIT_WIDTH=8 -E -x c++ - >/dev/null 2>&1 || missing="$missing <$header>"
    done
    [ -z "$missing" ] && exit 0
    echo "Not found here:$missing"
    exit 1
fi

missing=
for package in $packages; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

echo "Missing packages:$missing"
root=
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        root="sudo"
    else
        echo "They need root. Run: sudo apt-get update && sudo apt-get install$missing"
        exit 1
    fi
fi
echo "Installing them with apt-get."
export DEBIAN_FRONTEND=noninteractive
$root apt-get update -q && $root apt-get install -q -y --no-install-recommends $missing && exit 0
echo "The installation failed (see above); needed are:$missing"
exit 1
