# Puts dev/gpu_report.md together from the parts' sections, a summary first. Sourced, not run.
#
# The caller has set dir and hash. report_parts: every part, in the report's order.

report_parts="suites bench encoded multi cards pictures sanitizer"

# One line for all sections given: hardware, checks, tests, sanitizer errors, the range of streamed / floor. A second
# line for each check that failed or was left out.
summary() {  # FILES
    awk -v hash="$hash" -v parts="$(wc -w <<< "$report_parts")" '
        /^<!-- sources /    { there++; if ($3 != hash) other++ }
        /^- GPU: / && gpu == "" { gpu = substr($0, 8); sub(/, driver.*/, "", gpu) }
        /^- pass: /         { passed++ }
        /^- \*\*FAIL\*\*: / { failed++; lines = lines "- failed: " substr($0, 13) "\n" }
        /^- \*\*left out\*\*: / { left++; lines = lines "- left out: " substr($0, 17) "\n" }
        /^- .*suite gpu, / && match($0, /[0-9]+ passed, [0-9]+ failed/) {
            split(substr($0, RSTART, RLENGTH), count, " ")
            tests += count[1]; tests_failed += count[3]; suites++
        }
        /SUMMARY: / {  # RACECHECK counts hazards within the matrix library apart (sanitizer.sh)
            programs++
            if (/ within kernels of the matrix library/) { library++; next }
            if (match($0, /ERROR SUMMARY: [0-9]+/)) errors += substr($0, RSTART + 15, RLENGTH - 15)
            if (match($0, /\([0-9]+ errors/)) errors += substr($0, RSTART + 1, RLENGTH - 8)
        }
        /^\| *B *\|/ { floors = 1 }
        !/^\|/       { floors = 0 }
        floors && split($0, cell, / *\| */) > 10 && cell[10] + 0 > 0 {
            ratio = cell[10] + 0
            if (low == "" || ratio < low) low = ratio
            if (ratio > high) high = ratio
        }
        END {
            printf "**%s; sources `%s`; checks: %d passed, %d failed, %d left out", gpu == "" ? "no GPU" : gpu,
                   substr(hash, 1, 12), passed, failed, left
            if (suites) printf "; tests in %d suites: %d passed, %d failed", suites, tests, tests_failed
            if (programs) printf "; compute-sanitizer: %d errors in %d programs", errors, programs
            if (library) printf " (hazards within cuBLASLt apart in %d)", library
            if (low != "") printf "; streamed / floor: %.3f to %.3f", low, high
            if (there < parts) printf "; %d of %d parts missing", parts - there, parts
            if (other) printf "; %d of %d parts made from other sources", other, there
            print ".**"
            if (lines != "") printf "\n%s", lines
        }' "$@" < /dev/null
}

assemble() {
    local name found report=dev/gpu_report.md there=()
    for name in $report_parts; do [ -s "$dir/$name.md" ] && there+=("$dir/$name.md"); done
    {
        echo "# What the GPU shows"
        echo
        summary "${there[@]}"
        echo
        echo "Made by \`make gpu-report\` from sources \`$hash\` (\`make source-hash\`). A check that failed or was left" \
            "out stands again in its section, with its reason below it."
        for name in $report_parts; do
            echo
            if [ ! -s "$dir/$name.md" ]; then
                echo "**The part \`$name\` is missing: it was not run.**"
                continue
            fi
            found=$(sed -n '1s/<!-- sources \(.*\) -->/\1/p' "$dir/$name.md")
            if [ "$found" != "$hash" ]; then
                echo "**The part \`$name\` was made from other sources (\`$found\`).**"
                echo
            fi
            tail -n +2 "$dir/$name.md"
        done
    } > "$report"
    echo "wrote $report"
}
