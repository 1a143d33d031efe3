#!/bin/bash
# What only a GPU can show, gathered into dev/gpu_report.md.
#
#     dev/gpu_report.sh [suites] [bench] [encoded] [multi] [cards] [pictures] [sanitizer]     or all, the default
#     dev/gpu_report.sh assemble                                            the report alone, from the sections there
#
# Each part fits 8 minutes on one H200 with 16 cores. As it goes it writes its own section to build/gpu_report/
# (GPU_REPORT_DIR). The report is put together from the sections there, a summary first. It says which part is missing or
# was made from other sources. Every command has a time-out. What no longer fits into the part's time
# (GPU_REPORT_SECONDS, 480) is left out, and the report says so. Exit status 1 when a check failed or was left out.
set -u
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
dir=${GPU_REPORT_DIR:-build/gpu_report}
limit_s=${GPU_REPORT_SECONDS:-480}
mkdir -p "$dir" || exit 1
work=$(mktemp -d) || exit 1
memory_base=/dev/shm/slabstream-base-$$  # a model's files, where memory has room for them
trap 'rm -rf "$work" "$memory_base"' EXIT
hash=$(make -s source-hash)
failed=0
section='' log='' part_start=0  # of the part that runs

# The two builds. PRECISION decides what `real` is; nothing else differs.
bf16=build-cuda-bf16 fp32=build-cuda-fp32

. dev/gpu_report.d/common.sh
. dev/gpu_report.d/suites.sh
. dev/gpu_report.d/bench.sh
. dev/gpu_report.d/encoded.sh
. dev/gpu_report.d/multi.sh
. dev/gpu_report.d/cards.sh
. dev/gpu_report.d/pictures.sh
. dev/gpu_report.d/sanitizer.sh
. dev/gpu_report.d/assemble.sh

hardware() {
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,pcie.link.gen.max,pcie.link.width.max \
        --format=csv,noheader | awk -F', ' '{ printf "- GPU: %s, driver %s, %s, compute capability %s, PCIe %s x%s\n",
                                              $1, $2, $3, $4, $5, $6 }'
    echo "- CPU: $(lscpu | sed -n 's/^Model name: *//p' | head -n 1), $(nproc) cores; $(uname -srm)"
    echo "- CUDA: $("$(nvcc_path)" --version | sed -n 's/.*release //p'); $(g++ --version | head -n 1)"
}
nvcc_path() { command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; }

# Runs one part. Its section opens with what it was made from and on.
run_part() {
    section=$dir/$1.md log=$dir/$1.log part_start=$SECONDS
    [ -z "${GPU_REPORT_PROGRAMS:-}" ] || cp "$section" "$dir/$1.whole.md"
    {
        echo "<!-- sources $hash -->"
        echo "## $2"
        echo
        echo "\`dev/gpu_report.sh $1\`, $(date -u '+%Y-%m-%d %H:%M') UTC"
        echo
        hardware
        echo
    } > "$section"
    : > "$log"
    "part_$1"
    say ""
    say "Took $((SECONDS - part_start)) s."
}

parts=${*:-all}
[ "$parts" = all ] && parts=$report_parts
for name in $parts; do
    case " $report_parts assemble " in
        *" $name "*) [ "$name" = assemble ] || needs_gpu=1 ;;
        *)
            echo "gpu_report.sh: no part \"$name\"; wanted ${report_parts// /, }, assemble or all" >&2
            exit 1
            ;;
    esac
done
if [ -n "${needs_gpu:-}" ] && ! nvidia-smi -L > /dev/null 2>&1; then
    echo "gpu_report.sh: nvidia-smi finds no GPU here" >&2
    exit 1
fi
for name in $parts; do
    case $name in
        suites) run_part suites "Suites" ;;
        bench) run_part bench "Benchmarks" ;;
        encoded) run_part encoded "Slabs in blocks" ;;
        multi) run_part multi "Several ranks" ;;
        cards) run_part cards "Models within the memory of common cards" ;;
        pictures) run_part pictures "Pictures" ;;
        sanitizer) run_part sanitizer "compute-sanitizer" ;;
    esac
done
assemble
[ "$failed" = 0 ]
