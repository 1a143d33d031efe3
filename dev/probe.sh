#!/bin/sh
# Prints what a build finds on this machine, as make variables. CXX, NVCC and CUDA_HOME may say where to look.
home=${CUDA_HOME:-/usr/local/cuda}
nvcc=$(command -v "${NVCC:-nvcc}" || ls "$home/bin/nvcc" 2> /dev/null)
if [ -z "$CUDA_HOME" ] && of_nvcc=$(readlink -f "$nvcc" | grep '/bin/nvcc$'); then home=${of_nvcc%/bin/nvcc}; fi
echo "FOUND_NVCC := $nvcc"
echo "FOUND_CUDA_HOME := $home"
printf '#include <nccl.h>\nint main() { ncclUniqueId id; ncclConfig_t c = NCCL_CONFIG_INITIALIZER; return c.blocking + ncclGetUniqueId(&id); }\n' |
    ${CXX:-c++} -x c++ - -I"$home/include" -L"$home/lib64" -lnccl -lcudart -o /dev/null 2> /dev/null && echo "NCCL := links"

# Compute capabilities, such as 90. The kernels are for 8.0 and higher.
nvidia-smi -L > /dev/null 2>&1 && gpus=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -un)
for gpu in $gpus; do
    if [ "$gpu" -ge 80 ]; then echo "GPU_ARCHS += $gpu"; else echo "OLD_GPUS += $gpu"; fi
done

echo 'extern "C" void openblas_set_num_threads(int); int main() { openblas_set_num_threads(1); }' |
    $CXX -x c++ - -lopenblas -o /dev/null 2> /dev/null && echo "OPENBLAS := links"
exit 0
