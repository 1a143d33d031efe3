// Both events are recorded anew by each exchange. A peer's wait takes the record of its moment, and no rank can record
// again before the meeting that follows all waits. tests/mutation_test.sh removes each marked wait.
#include "kernels/runtime/local_comm.h"

#include <stdexcept>
#include <type_traits>
#include <utility>

namespace slab {

namespace {

// What a rank shows the others at the first meeting, then for each rank its SentPiece and the size of its
// ReceivedPiece.
struct Offer {
    const Event* given;
    const Event* taken;
};
struct Dealing {
    SentPiece sent;
    size_t received_bytes;
};
static_assert(std::is_trivially_copyable_v<Dealing>);

Dealing dealing_of(const Bytes& offer, int rank) {
    Dealing dealing;
    std::memcpy(&dealing, offer.data() + sizeof(Offer) + static_cast<size_t>(rank) * sizeof dealing, sizeof dealing);
    return dealing;
}

// All ranks look at all pairs, so that all of them throw.
void check_sizes(const std::vector<Bytes>& offers, CallTag tag) {
    const int size = static_cast<int>(offers.size());
    for (int from = 0; from < size; ++from)
        for (int to = 0; to < size; ++to) {
            const size_t sent = dealing_of(offers[static_cast<size_t>(from)], to).sent.bytes;
            const size_t received = dealing_of(offers[static_cast<size_t>(to)], from).received_bytes;
            if (sent != received)
                throw std::logic_error("exchange at " + tag.text() + ": rank " + std::to_string(from) + " gives " +
                                       std::to_string(sent) + " bytes, rank " + std::to_string(to) + " takes " +
                                       std::to_string(received));
        }
}

}  // namespace

LocalComm::LocalComm(RankGroup& group, int rank, Device& device) : Comm(group, rank), given_(device), taken_(device) {
    if (group.local() != group.size()) throw std::logic_error("a local exchange between processes");
}

void LocalComm::exchange(std::span<const SentPiece> mine, std::span<const ReceivedPiece> theirs, Stream& stream,
                         CallTag tag) {
    const size_t ranks = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
    if (mine.size() != ranks || theirs.size() != ranks) throw std::logic_error("exchange: a piece for each rank");
    given_.record(stream);
    Bytes message(sizeof(Offer) + ranks * sizeof(Dealing));
    const Offer mine_offer{&given_, &taken_};
    std::memcpy(message.data(), &mine_offer, sizeof mine_offer);
    for (size_t r = 0; r < ranks; ++r) {
        const Dealing dealing{mine[r], theirs[r].bytes};
        std::memcpy(message.data() + sizeof(Offer) + r * sizeof dealing, &dealing, sizeof dealing);
    }
    const std::vector<Bytes> offers = meet(std::move(message), tag);
    check_sizes(offers, tag);
    std::vector<Offer> events(ranks);
    for (size_t r = 0; r < ranks; ++r) std::memcpy(&events[r], offers[r].data(), sizeof(Offer));

    // From the next rank on, so that not all read one device's memory at once.
    for (size_t i = 1; i <= ranks; ++i) {
        const size_t peer = (me + i) % ranks;
        const SentPiece sent = dealing_of(offers[peer], rank()).sent;
        if (sent.bytes == 0) continue;
        if (peer != me) stream.wait(*events[peer].given);  // guard: GIVEN
        if (sent.data != theirs[peer].data)
            copy_async(theirs[peer].data, sent.data, sent.bytes, CopyKind::device_to_device, stream);
    }
    taken_.record(stream);
    meet({}, tag);
    for (size_t peer = 0; peer < ranks; ++peer) {
        if (peer == me || mine[peer].bytes == 0) continue;
        stream.wait(*events[peer].taken);  // guard: TAKEN
    }
}

}  // namespace slab
