// The decoder of a model's encoded slabs: from the blocks in a slot to the tensors that kernels read, as a layout says.
#pragma once

#include <cstddef>
#include <vector>

#include "offload/slab_decoder.h"
#include "train/model/model_layout.h"

namespace slab::train {

class SlabCodec final : public offload::SlabDecoder {
  public:
    // layout.is_encoded() holds. Nothing of the layout is kept but its tables.
    explicit SlabCodec(const ModelLayout& layout) : decoded_(layout.layer_slabs()), encoded_(layout.encoded) {}

    const offload::SlabLayout& layout(int layer) const override { return decoded_.at(static_cast<size_t>(layer)); }
    void enqueue(int layer, const std::byte* encoded, std::byte* work, Stream& compute) override;

  private:
    std::vector<offload::SlabLayout> decoded_;  // [L]
    std::vector<EncodedSlab> encoded_;          // [L]
};

}  // namespace slab::train
