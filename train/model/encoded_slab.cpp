// Each piece begins at an offset of the slab's alignment, so that decoding reads and writes whole vectors.
#include "train/model/encoded_slab.h"

#include <algorithm>
#include <utility>

#include "train/model/model_layout.h"

namespace slab::train {

EncodedSlab encoded_slab(const TensorGroup& group, SlabFormat format, const StoredTypes& stored) {
    EncodedSlab slab;
    const auto add = [&](EncodedPiece piece, std::string name, size_t bytes) {
        piece.moved_offset_bytes = slab.moved.offset_bytes(slab.moved.add(std::move(name), bytes));
        slab.pieces.push_back(piece);
    };
    for (size_t index = 0; index < group.tensors.size(); ++index) {
        const Placed& tensor = group.tensors[index];
        if (!tensor.in_slab) continue;
        const TensorSpec& spec = tensor.spec;
        size_t decoded_offset_bytes = group.slab.offset_bytes(*tensor.in_slab);
        // Parts without blocks that follow each other are one piece.
        for (size_t part = 0; part < spec.parts.size();) {
            EncodedPiece piece{.format = kept_format(format, spec, spec.parts[part], stored),
                               .tensor = index,
                               .first_part = part,
                               .parts = 0,
                               .moved_offset_bytes = 0,
                               .decoded_offset_bytes = decoded_offset_bytes,
                               .elems = 0};
            do {
                piece.elems += spec.parts[part].rows * spec.cols;
                ++piece.parts;
                ++part;
            } while (piece.format == BlockFormat::plain && part < spec.parts.size() &&
                     kept_format(format, spec, spec.parts[part], stored) == BlockFormat::plain);
            const std::string name =
                piece.parts == spec.parts.size() ? spec.name : spec.name + "." + std::to_string(piece.first_part);
            decoded_offset_bytes += piece.elems * sizeof(real);
            add(piece, name, encoded_bytes(piece.format, piece.elems));
        }
    }
    return slab;
}

void lay_out_encoding(ModelLayout& m) {
    const ModelSettings& s = m.settings;
    if (s.slab_format == SlabFormat::bf16) return;
    bool any_blocks = false;
    size_t largest_bytes = 0;
    std::vector<EncodedSlab> encoded;
    for (int l = 0; l < m.config.L; ++l) {
        const EncodedSlab& slab = encoded.emplace_back(encoded_slab(m.layer(l), s.slab_format, s.stored_types));
        for (const EncodedPiece& piece : slab.pieces) any_blocks |= piece.format != BlockFormat::plain;
        largest_bytes = std::max(largest_bytes, m.layer(l).slab.total_bytes());
    }
    if (!any_blocks) return;
    m.encoded = std::move(encoded);
    m.work_slab_bytes = largest_bytes;
}

std::vector<offload::SlabLayout> ModelLayout::moved_slabs() const {
    std::vector<offload::SlabLayout> slabs;
    for (int l = 0; l < config.L; ++l) slabs.push_back(moved_slab(l));
    return slabs;
}

std::string kept_as_text(const ModelLayout& m) {
    if (!m.is_encoded()) return "";
    const SlabFormat format = m.settings.slab_format;
    return format == SlabFormat::as_is ? " in the file's blocks" : std::string(" in ") + slab_format_name(format);
}

}  // namespace slab::train
