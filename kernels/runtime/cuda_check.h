// Every CUDA and cuBLAS call goes through one of these.
//
// CUDA_CHECK and CUBLAS_CHECK throw DeviceError with the expression, file:line, the error's name and its meaning. They
// clear the error that CUDA remembers, so that a refused call does not show up again in an unrelated place. CUDA_WARN
// and CUBLAS_WARN print the text instead; destructors use them.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

namespace slab {

[[noreturn]] void throw_cuda_error(cudaError_t error, const char* expression, const char* file, int line);
[[noreturn]] void throw_cublas_error(cublasStatus_t status, const char* expression, const char* file, int line);
void warn_cuda_error(cudaError_t error, const char* expression, const char* file, int line);
void warn_cublas_error(cublasStatus_t status, const char* expression, const char* file, int line);

}  // namespace slab

#define CUDA_CHECK(expression)                                                           \
    do {                                                                                 \
        const cudaError_t cuda_check_error = (expression);                               \
        if (cuda_check_error != cudaSuccess)                                             \
            ::slab::throw_cuda_error(cuda_check_error, #expression, __FILE__, __LINE__); \
    } while (false)

#define CUBLAS_CHECK(expression)                                                              \
    do {                                                                                      \
        const cublasStatus_t cublas_check_status = (expression);                              \
        if (cublas_check_status != CUBLAS_STATUS_SUCCESS)                                     \
            ::slab::throw_cublas_error(cublas_check_status, #expression, __FILE__, __LINE__); \
    } while (false)

#define CUDA_WARN(expression)                                                           \
    do {                                                                                \
        const cudaError_t cuda_check_error = (expression);                              \
        if (cuda_check_error != cudaSuccess)                                            \
            ::slab::warn_cuda_error(cuda_check_error, #expression, __FILE__, __LINE__); \
    } while (false)

#define CUBLAS_WARN(expression)                                                              \
    do {                                                                                     \
        const cublasStatus_t cublas_check_status = (expression);                             \
        if (cublas_check_status != CUBLAS_STATUS_SUCCESS)                                    \
            ::slab::warn_cublas_error(cublas_check_status, #expression, __FILE__, __LINE__); \
    } while (false)
