#!/bin/bash
# dev/plot_run.py on the log and the trace of a tiny run. Both pictures must be PNGs of the right size. The log of a killed
# run is drawn, and files that cannot be drawn are refused by name. Skipped where python3 has no matplotlib.
#
# The argument is the build directory.
. "$(dirname "$0")/common.sh"

python=
for candidate in python3 /usr/bin/python3; do # another python3 may hide Debian's
    if "$candidate" -c 'import matplotlib' > /dev/null 2>&1; then python=$candidate && break; fi
done
if [ -z "$python" ]; then
    skip "plot_run.py: no python3 with matplotlib here (Debian: python3-matplotlib)"
    finish
fi
export MPLCONFIGDIR=$work/matplotlib # its font cache; the home directory may be read-only
unset DISPLAY

plot() { "$python" dev/plot_run.py "$@"; }
# Width and height of a PNG, from its header; nothing if it is none.
size_of() {
    "$python" -c 'import struct, sys
head = open(sys.argv[1], "rb").read(24)
if head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR": print(*struct.unpack(">2I", head[16:24]))' "$1"
}
# The picture $2 is a PNG as wide as a README shows it twice, of $3 to $4 pixels height, and light enough for one.
is_picture() {
    local width height
    read -r width height <<< "$(size_of "$2")"
    holds "$1: no PNG of 1440 x $3..$4 but '${width:-} ${height:-}'" \
        [ "${width:-0}" = 1440 -a "${height:-0}" -ge "$3" -a "${height:-0}" -le "$4" ]
    holds "$1: $(stat -c %s "$2") bytes" [ "$(stat -c %s "$2")" -gt 8000 -a "$(stat -c %s "$2")" -lt 250000 ]
    rm -f "$2"
}

for ((i = 0; i < 120; i++)); do echo "$i apples and $((3 * i)) pears make $((4 * i)) fruits."; done > "$work/text"
"$build/tokenize" --output-dir "$work/data" --val-fraction 0.1 "$work/text" > "$output" 2>&1 ||
    { fail "tokenize" "$output" && finish; }
run() {
    require 0 "$build/train_gpt" --base-model "$fixtures/llama/base" --train-data "$work/data/train.bin" --sequence-len 32 \
        --val-data "$work/data/val.bin" --max-steps 6 --eval-steps 3 --lora-r 2 --output-dir "$work/$1" "${@:2}"
}
run streamed --layer-offloading --trace "$work/trace.json" --trace-steps 3:4
run resident
log=$work/streamed/log.jsonl

# --- pictures
require 0 plot runs "$work/streamed" -o "$work/one.png" && is_picture "one run" "$work/one.png" 750 1000
for x in step tokens seconds; do
    require 0 plot runs "$work/streamed" "$work/resident" --x $x --smooth 2 --title "Two runs" -o "$work/two.png" &&
        is_picture "two runs over $x" "$work/two.png" 800 1050
done
require 0 plot trace "$work/trace.json" --step 3 -o "$work/step.png" && is_picture "a step" "$work/step.png" 250 500
require 0 plot trace "$work/trace.json" --rows 3 -o "$work/step.png" && is_picture "a folded step" "$work/step.png" 550 900

# --- what a killed or troubled run leaves
mkdir "$work/cut" "$work/lost"
head -c -20 "$log" > "$work/cut/log.jsonl"
require 0 plot runs "$work/cut" -o "$work/cut.png" && prints "a cut log" "note: .*cut/log.jsonl, line [0-9]+: .*cut short"
is_picture "a cut log" "$work/cut.png" 750 1000
sed -E '/"step":[24],/s/"loss":[0-9.]+/"loss":"NaN"/' "$log" > "$work/lost/log.jsonl"
require 0 plot runs "$work/lost" -o "$work/lost.png" && is_picture "a loss that is not finite" "$work/lost.png" 750 1000

# --- refusals, each leaving no picture
refused() {
    local name=$1 message=$2
    attempt plot "${@:3}" -o "$work/none.png"
    holds "$name: exit status $status, wanted 1" [ "$status" = 1 ]
    prints "$name" "^plot_run.py: .*$message"
    prints_not "$name" "Traceback"
    holds "$name: a picture was written" [ ! -e "$work/none.png" ]
}
# Another python than Debian's is told what helps it.
if /usr/bin/python3 -c 'import matplotlib' > /dev/null 2>&1 &&
    /usr/bin/python3 -m venv --without-pip "$work/venv" > /dev/null 2>&1; then
    attempt "$work/venv/bin/python" dev/plot_run.py runs "$work/lost" -o "$work/none.png"
    prints "a python without matplotlib" "missing from this python, $work/venv/bin/python; /usr/bin/python3 has it: /usr/bin/python3 "
else
    skip "plot_run.py: no second python3 to run it without matplotlib"
fi
: > "$work/empty"
echo '{"event":"start","step":0}' > "$work/started"
sed '3s/.*/{"step":/' "$log" > "$work/broken"
sed -E 's/"tokens":[0-9]+/"tokens":"many"/' "$log" > "$work/odd"
head -c 900 "$work/trace.json" > "$work/cut.json"
echo '{"traceEvents":[]}' > "$work/no_boxes.json"
refused "no such run" "$work/nowhere: No such file" runs "$work/nowhere"
refused "no run directory" "$work/data: holds no log.jsonl" runs "$work/data"
refused "an empty log" "$work/empty: is empty" runs "$work/empty"
refused "a log without steps" "$work/started: holds no training step" runs "$work/started"
refused "a broken line" "$work/broken, line 3: is no JSON" runs "$work/broken"
refused "a text for a number" "$work/odd, line [0-9]+: tokens is \"many\"" runs "$work/odd"
refused "no log" "$work/text, line 1: is no JSON" runs "$work/text"
refused "a run given twice" "the same log is given twice" runs "$work/streamed" "$log"
refused "no such trace" "$work/none.json: No such file" trace "$work/none.json"
refused "an empty trace" "$work/empty: is empty" trace "$work/empty"
refused "a cut trace" "$work/cut.json: is no JSON.*cut short" trace "$work/cut.json"
refused "a log as a trace" "$work/started: has no traceEvents" trace "$work/started"
refused "a trace without boxes" "no_boxes.json: holds no step" trace "$work/no_boxes.json"
refused "no such step" "--step 9: is not in .*, which holds steps 3 to 4" trace "$work/trace.json" --step 9
refused "rows that make no sense" "--rows 0: " trace "$work/trace.json" --rows 0
refused "a mean that makes no sense" "--smooth -1: " runs "$work/streamed" --smooth -1
attempt plot runs "$work/streamed" -o "$work/picture.txt"
prints "a name that is no picture's" "picture.txt: wanted a name that ends in .png"
attempt plot runs "$work/streamed" -o "$work/no/such/picture.png"
prints "a directory that does not exist" "no/such/picture.png: cannot be written: No such file"

finish
