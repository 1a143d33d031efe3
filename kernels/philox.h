// Philox 4x32-10, the counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//
// Every random number of a run is a pure function of its purpose. So recomputation, another split into micro-batches
// and other ranks draw the same numbers. Usable from host and device code.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define SLAB_HOST_DEVICE __host__ __device__
#else
#define SLAB_HOST_DEVICE
#endif

namespace slab {

struct PhiloxOut {
    uint32_t v[4];
};

SLAB_HOST_DEVICE inline PhiloxOut philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
        const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(p1);
        c3 = static_cast<uint32_t>(p0);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// c3, the counter's last word, is a number's purpose. Dropout fills it with layer * 32 + site of a module, with sites
// below kDropoutSites. Every other purpose has a word of its own whose low five bits are kDropoutSites or more. The
// values decide the bits of every run and must never change.
inline constexpr uint32_t kDropoutSites = 7;
namespace philox_use {
inline constexpr uint32_t random_weights = 0x1234;   // of a base drawn from scratch
inline constexpr uint32_t initial_adapter = 0x10fa;  // LoRA's A
inline constexpr uint32_t row_order = 0xDA7A;        // of the training rows, epoch by epoch
inline constexpr uint32_t sampling = 0x5A3F1E;       // of tokens

constexpr bool apart_from_dropout(uint32_t use) {
    return use % 32 >= kDropoutSites;
}
static_assert(apart_from_dropout(random_weights) && apart_from_dropout(initial_adapter) &&
              apart_from_dropout(row_order) && apart_from_dropout(sampling));
}  // namespace philox_use

// Uniform in [0, 1), 24 bits.
SLAB_HOST_DEVICE inline float uniform01(uint32_t v) {
    return static_cast<float>(v >> 8) * 0x1p-24f;
}

}  // namespace slab
