# What the demos share; sourced, not run. $build is where the programs are. Headings count the seconds from here on.
# shellcheck shell=bash
build=${BUILD:-build}
began=$SECONDS

heading() { printf '\n== %s (%d s so far)\n\n' "$1" $((SECONDS - began)); }
give_up() {
    echo "${0##*/}: $1" >&2
    exit 1
}
need() { # a file or directory that the user named, and the variable that names it
    [ -s "$1" ] || give_up "$2=$1: no such file, or empty"
}
need_program() { # its name, the make target that makes all
    [ -x "$build/$1" ] || give_up "$build/$1 is missing; run make first (or make $2)"
}
# The text to learn from, at the path given: TEXT, or the King James Bible.
put_text() {
    if [ -n "${TEXT:-}" ]; then
        need "$TEXT" TEXT
        cp "$TEXT" "$1"
    elif command -v bible > /dev/null; then
        # Each verse comes as a line "Ge1:1 In the beginning ...".
        bible -f Gen1:1-Rev22:21 | sed -E 's/^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ //' > "$1"
    else
        give_up "the King James Bible is missing: run dev/deps.sh, which installs Debian's bible-kjv, or give TEXT=file"
    fi
}
# A number under a name in a log: of the first line that has it (head), or of the last (tail).
logged() { sed -nE "s/.*\"$2\":([0-9.]+).*/\1/p" "$1" | "$3" -n 1; } # log, name, head or tail
