#!/bin/sh
# Includes point downwards: a room includes itself and the rooms before it in the Makefile's ROOMS. So folders form no
# circle. Every header compiles alone. tests/ and dev/ may include everything.
# Arguments: the compiler with its flags, then `--`, then the rooms from the ground up.
set -u
cd "$(dirname "$0")/.." || exit 1
compiler=
while [ $# -gt 0 ] && [ "$1" != -- ]; do compiler="$compiler $1"; shift; done
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || { echo "usage: check_includes.sh COMPILER... -- ROOM..."; exit 2; }
found=$(mktemp) || exit 1
trap 'rm -f "$found"' EXIT

below=" "
for room in "$@"; do
    below="$below$room "
    for file in "$room"/*.h "$room"/*.cpp "$room"/*.cu "$room"/*.cuh; do
        [ -e "$file" ] || continue
        sed -n 's/^ *# *include "\([^"]*\)\/[^"/]*".*/\1/p' "$file" | sort -u | while read -r included; do
            case "$below" in
                *" $included "*) ;;
                *) echo "$file: includes from $included/, which is not below $room/" ;;
            esac
        done
    done
done > "$found"

# CUDA's own headers need its compiler; what a CUDA header includes is checked above.
for room in "$@" tests dev; do
    for header in "$room"/*.h; do
        [ -e "$header" ] || continue
        grep -q '<cuda\|<cublas' "$header" || echo "$header"
    done
done | xargs -P "$(nproc)" -I '{}' sh -c \
    "echo '#include \"{}\"' | $compiler -x c++ -fsyntax-only - > /dev/null 2>&1 || echo '{}: does not compile alone'" >> "$found"

cat "$found"
[ ! -s "$found" ] && echo "includes point downwards, and every header compiles alone"
