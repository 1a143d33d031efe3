// Which format a base may have is decided before anything is planned; the rest is text.
#include "train/run/slab_choice.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "data/base/display.h"
#include "train/run/flag_table.h"
#include "train/spec/text.h"

namespace slab::train {

namespace {

std::string names_of(const StoredTypes& stored) {
    std::set<std::string> names;
    for (const auto& [key, format] : stored) names.insert(block_info(format).name);
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

size_t frozen_bytes(const ModelLayout& m, bool moved) {
    size_t bytes = 0;
    for (int l = 0; l < m.config.L; ++l) bytes += moved ? m.moved_slab(l).total_bytes() : m.layer(l).slab.total_bytes();
    return bytes;
}

// "Q4_K 80%, Q6_K 20%": the share of each format in the bytes that are in blocks, largest first.
std::string shares_text(const ModelLayout& m) {
    std::map<BlockFormat, size_t> bytes;
    size_t all = 0;
    for (const EncodedSlab& slab : m.encoded)
        for (const EncodedPiece& piece : slab.pieces)
            if (piece.format != BlockFormat::plain) {
                bytes[piece.format] += encoded_bytes(piece.format, piece.elems);
                all += encoded_bytes(piece.format, piece.elems);
            }
    std::vector<std::pair<size_t, BlockFormat>> sorted;
    for (const auto& [format, of_format] : bytes) sorted.emplace_back(of_format, format);
    std::sort(sorted.rbegin(), sorted.rend());
    std::string text;
    for (const auto& [of_format, format] : sorted)
        text += format_text("%s%s %.0f%%", text.empty() ? "" : ", ", block_info(format).name,
                            100 * static_cast<double>(of_format) / static_cast<double>(all));
    return text;
}

}  // namespace

SlabChoice choose_slab_format(const TrainOptions& o, const StoredTypes& stored, bool gguf) {
    const bool in_blocks = !stored.empty(), bitsandbytes = in_blocks && !gguf;
    if (o.slab_format.empty() && !o.load_in_4bit) {
        const bool keep = bitsandbytes || (in_blocks && o.offload.layer_offloading);
        return {keep ? SlabFormat::as_is : SlabFormat::bf16, {}};
    }
    SlabFormat format = o.slab_format.empty() ? SlabFormat::nf4 : slab_format_named(o.slab_format).value();
    if (o.load_in_4bit && bitsandbytes) format = SlabFormat::as_is;
    const std::string flag = as_given(o, o.slab_format.empty() ? "load-in-4bit" : "slab-format");
    if (in_blocks && (format == SlabFormat::q8_0 || format == SlabFormat::nf4))
        refuse_flag(flag, "the base is stored in blocks of few bits already (" + names_of(stored) + ")",
                    "--slab-format as-is, which keeps them", "bf16 decodes them while loading");
    if (!in_blocks && format == SlabFormat::as_is)
        return {format, {flag + ": no layer of the base is stored in blocks, so this is the same as bf16"}};
    return {format, {}};
}

std::vector<std::string> plain_tensor_notes(const ModelLayout& m) {
    std::map<size_t, size_t> tensors_by_cols;
    const ModelSettings& s = m.settings;
    for (int l = 0; l < m.config.L; ++l)
        for (const Placed& tensor : m.layer(l).tensors)
            for (const TensorPart& part : tensor.spec.parts)
                if (tensor.in_slab && stays_plain(s.slab_format, tensor.spec, part, s.stored_types))
                    ++tensors_by_cols[tensor.spec.cols];
    const BlockFormat format = s.slab_format == SlabFormat::q8_0 ? BlockFormat::q8_0 : BlockFormat::nf4;
    std::vector<std::string> notes;
    for (const auto& [cols, tensors] : tensors_by_cols)
        notes.push_back(data::counted(tensors, "tensor") + (tensors == 1 ? " stays " : " stay ") + kPrecision +
                        ": rows of " + std::to_string(cols) + " are no multiple of " +
                        std::to_string(block_info(format).values));
    return notes;
}

std::string slabs_line(const ModelLayout& m, const EncodeErrors& errors) {
    if (!m.is_encoded()) return "";
    const std::string bytes = memory_text(frozen_bytes(m, true));
    if (m.settings.slab_format == SlabFormat::as_is)
        return "slabs: as in the file (" + shares_text(m) + "), " + bytes +
               (m.ring.streamed_layers() > 0 ? ", none decoded in host memory"
                                             : " on the device, decoded one at a time");
    return std::string("slabs: ") + slab_format_name(m.settings.slab_format) + ", " +
           memory_text(frozen_bytes(m, false)) + " as " + kPrecision + " -> " + bytes + "; error " +
           format_text("%.2f%% on average, %.2f%% at worst (%s); norms and biases exact", 100 * errors.mean(),
                       100 * errors.worst(), errors.worst_tensor().c_str());
}

}  // namespace slab::train
