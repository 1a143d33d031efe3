// The largest sizes that config.json or GGUF metadata may claim. They are far above any dense model, and no product of
// three of them overflows. Heads are limited by one dimension of a CUDA grid (kernels/attention/attention_cached.cu).
#pragma once

namespace slab::train {

inline constexpr int kMaxLayers = 10000, kMaxHidden = 1 << 20, kMaxHeads = 65535, kMaxHeadSize = 1 << 14;
inline constexpr int kMaxIntermediate = 1 << 22, kMaxVocabulary = 1 << 24, kMaxPositions = 1 << 30;

}  // namespace slab::train
