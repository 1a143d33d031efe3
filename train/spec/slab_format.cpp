// The one rule that says what a tensor is kept in; layout, reader and reports ask it.
#include "train/spec/slab_format.h"

#include <iterator>

namespace slab::train {

namespace {

constexpr const char* kNames[] = {"bf16", "q8_0", "nf4", "as-is"};

// The blocks that the format asks for, whatever the length of a row.
BlockFormat asked_format(SlabFormat format, const TensorSpec& spec, const TensorPart& part, const StoredTypes& stored) {
    if (!spec.matrix || format == SlabFormat::bf16) return BlockFormat::plain;
    if (format == SlabFormat::q8_0) return BlockFormat::q8_0;
    if (format == SlabFormat::nf4) return BlockFormat::nf4;
    const auto found = stored.find(part.key);
    return found == stored.end() ? BlockFormat::plain : found->second;
}

}  // namespace

const char* slab_format_name(SlabFormat format) {
    return kNames[static_cast<size_t>(format)];
}

std::optional<SlabFormat> slab_format_named(std::string_view name) {
    for (size_t i = 0; i < std::size(kNames); ++i)
        if (name == kNames[i]) return static_cast<SlabFormat>(i);
    return std::nullopt;
}

BlockFormat kept_format(SlabFormat format, const TensorSpec& spec, const TensorPart& part, const StoredTypes& stored) {
    const BlockFormat asked = asked_format(format, spec, part, stored);
    return spec.cols % block_info(asked).values == 0 ? asked : BlockFormat::plain;
}

bool stays_plain(SlabFormat format, const TensorSpec& spec, const TensorPart& part, const StoredTypes& stored) {
    return asked_format(format, spec, part, stored) != kept_format(format, spec, part, stored);
}

}  // namespace slab::train
