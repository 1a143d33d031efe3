// The machine instructions of Hopper's attention kernels (sm_90a), one function each: wgmma, bulk tensor copies,
// mbarriers, register moves between warpgroups.
//
// This is the only inline assembly of these kernels. Operand layouts: PTX ISA, "Asynchronous warpgroup level matrix
// multiply-accumulate". A warp's 16 rows of an accumulator have the layout of mma.m16n8's.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention/attention_ptx.cuh"

namespace slab::attn::hopper {

// A barrier in shared memory completes a phase when `count` arrivals and all announced bytes are in.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// Makes initialised barriers visible to bulk copies; the block's barrier must follow.
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Announces bytes without arriving.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Waits until the phase of this parity is complete; parity 1 of a fresh barrier counts as complete.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// The map's box at (column, head, token, row of the batch) to shared memory; what lies outside the tensor is zero.
__device__ __forceinline__ void copy_box(void* dst, const CUtensorMap* map, uint64_t* barrier, int column, int head,
                                         int token, int b) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(shared_address(dst)),
        "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(token), "r"(b)
        : "memory");
}

// The 128 threads of one warpgroup; id 1 to 15.
__device__ __forceinline__ void warpgroup_barrier(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Before the first product of a batch: registers written by other instructions become visible to it.
__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All but the latest kPending batches are done. Follow with settle() for each accumulator that is read next.
template <int kPending>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define SLAB_ACC(r) "+f"(r[0]), "+f"(r[1]), "+f"(r[2]), "+f"(r[3])

// Keeps the compiler from moving reads of an accumulator above the wait.
template <int kTiles>
__device__ __forceinline__ void settle(float (&d)[kTiles][4]) {
#pragma unroll
    for (int i = 0; i < kTiles; i++) asm volatile("" : SLAB_ACC(d[i])::"memory");
}

// d[64, kN] = (add ? d : 0) + a[64, 16] b[kN, 16]^T, both in shared memory.
template <int kN>
__device__ void multiply_shared(float (&d)[kN / 8][4], uint64_t a, uint64_t b, bool add);

// d[64, kN] = (add ? d : 0) + a[64, 16] b[16, kN], a in registers, b in shared memory.
template <int kN>
__device__ void multiply_registers(float (&d)[kN / 8][4], const uint32_t (&a)[4], uint64_t b, bool add);

template <>
__device__ __forceinline__ void multiply_shared<64>(float (&d)[8][4], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n}"
        : SLAB_ACC(d[0]), SLAB_ACC(d[1]), SLAB_ACC(d[2]), SLAB_ACC(d[3]), SLAB_ACC(d[4]), SLAB_ACC(d[5]),
          SLAB_ACC(d[6]), SLAB_ACC(d[7])
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

template <>
__device__ __forceinline__ void multiply_shared<128>(float (&d)[16][4], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}"
        : SLAB_ACC(d[0]), SLAB_ACC(d[1]), SLAB_ACC(d[2]), SLAB_ACC(d[3]), SLAB_ACC(d[4]), SLAB_ACC(d[5]),
          SLAB_ACC(d[6]), SLAB_ACC(d[7]), SLAB_ACC(d[8]), SLAB_ACC(d[9]), SLAB_ACC(d[10]), SLAB_ACC(d[11]),
          SLAB_ACC(d[12]), SLAB_ACC(d[13]), SLAB_ACC(d[14]), SLAB_ACC(d[15])
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

template <>
__device__ __forceinline__ void multiply_registers<64>(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
        : SLAB_ACC(d[0]), SLAB_ACC(d[1]), SLAB_ACC(d[2]), SLAB_ACC(d[3]), SLAB_ACC(d[4]), SLAB_ACC(d[5]),
          SLAB_ACC(d[6]), SLAB_ACC(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

template <>
__device__ __forceinline__ void multiply_registers<128>(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b,
                                                        bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
        : SLAB_ACC(d[0]), SLAB_ACC(d[1]), SLAB_ACC(d[2]), SLAB_ACC(d[3]), SLAB_ACC(d[4]), SLAB_ACC(d[5]),
          SLAB_ACC(d[6]), SLAB_ACC(d[7]), SLAB_ACC(d[8]), SLAB_ACC(d[9]), SLAB_ACC(d[10]), SLAB_ACC(d[11]),
          SLAB_ACC(d[12]), SLAB_ACC(d[13]), SLAB_ACC(d[14]), SLAB_ACC(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

#undef SLAB_ACC

}  // namespace slab::attn::hopper
