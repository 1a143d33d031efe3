// The largest sizes that a model's description may claim: far above any dense model, and below them no product of three
// sizes overflows; heads are what one dimension of a CUDA grid takes (kernels/attention/attention_cached.cu). For
// readers of foreign descriptions (config.json, GGUF metadata).
#pragma once

namespace slab::train {

inline constexpr int kMaxLayers = 10000, kMaxHidden = 1 << 20, kMaxHeads = 65535, kMaxHeadSize = 1 << 14;
inline constexpr int kMaxIntermediate = 1 << 22, kMaxVocabulary = 1 << 24, kMaxPositions = 1 << 30;

}  // namespace slab::train
