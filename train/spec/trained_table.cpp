// Offsets: first the tensors that decay, then the others, each in the order of add().
#include "train/spec/trained_table.h"

#include <stdexcept>
#include <utility>

namespace slab::train {

namespace {
constexpr size_t kAlignElems = 128;
size_t align_up(size_t n) {
    return (n + kAlignElems - 1) / kAlignElems * kAlignElems;
}
}  // namespace

size_t TrainedTable::add(TrainedTensor tensor) {
    if (tensor.joined && (tensors_.empty() || tensors_.back().decay != tensor.decay))
        throw std::logic_error("trained tensor " + tensor.key + " cannot join its predecessor");
    tensors_.push_back(std::move(tensor));
    return tensors_.size() - 1;
}

void TrainedTable::finish() {
    size_t end = 0;
    for (const bool decay : {true, false}) {
        for (auto& t : tensors_) {
            if (t.decay != decay) continue;
            t.offset_elems = t.joined ? end : align_up(end);
            end = t.offset_elems + t.elems();
        }
        end = align_up(end);
        if (decay) decayed_elems_ = end;
    }
    total_elems_ = end;
}

size_t TrainedTable::parameter_count() const {
    size_t n = 0;
    for (const auto& t : tensors_) n += t.elems();
    return n;
}

std::vector<size_t> TrainedTable::packed_offsets() const {
    std::vector<size_t> offsets;
    size_t end = 0;
    for (const auto& t : tensors_) {
        offsets.push_back(end);
        end += t.elems();
    }
    return offsets;
}

}  // namespace slab::train
