// How the ranks of a run move bytes and meet: two operations, and no arithmetic. Every sum is a kernel of ours, in an
// order of ours, so results do not depend on what carries the bytes.
//
// A rank is a host thread with a device of its own. Ranks of one process may share a device. These are rules for every
// caller and every transport.
// One host thread per rank makes all of the rank's calls, in the same order on all ranks. Each call has a tag. Unequal
// tags are a programmer's mistake, which throws std::logic_error on all ranks.
// A stream waits only for events that are recorded already. So a rank that has ended cannot hang another's device. No
// host function waits for another rank.
// What ranks do next depends only on what all of them know. An interrupt, a bad loss, data that cannot be read: each is
// a bit in a meeting, never one rank's own decision.
// Nobody frees what others read before all streams are drained.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/runtime/runtime.h"

namespace slab {

// Where a rank is: "gradients 41". `what` is a string literal; number < 0: none.
struct CallTag {
    const char* what = "";
    int64_t number = -1;

    std::string text() const { return number < 0 ? what : what + (" " + std::to_string(number)); }
    friend bool operator==(const CallTag& a, const CallTag& b) {
        return a.number == b.number && std::strcmp(a.what, b.what) == 0;
    }
};

// Thrown by every call of a rank once another rank has failed, or was missing for too long.
struct PeerFailed : DeviceError {
    PeerFailed(int of_rank, const std::string& its_reason)
        : DeviceError("rank " + std::to_string(of_rank) + ": " + its_reason), rank(of_rank), why(its_reason) {}
    int rank;
    std::string why;
};

// Bytes on the caller's device, for a peer or from one. bytes 0: nothing.
struct SentPiece {
    const void* data = nullptr;
    size_t bytes = 0;
};
struct ReceivedPiece {
    void* data = nullptr;
    size_t bytes = 0;
};

class RankGroup;
using Bytes = std::vector<std::byte>;

// One rank's end. Used by its rank's host thread alone, but for RankGroup::fail().
class Comm {
  public:
    // The group must outlive this. rank: in the whole run, from 0.
    Comm(RankGroup& group, int rank) : group_(group), rank_(rank) {}
    virtual ~Comm() = default;
    Comm(const Comm&) = delete;
    Comm& operator=(const Comm&) = delete;

    int rank() const { return rank_; }
    int size() const;

    // mine[r]: bytes for rank r; theirs[r]: where rank r's bytes for this rank go; both [size()]. Enqueued: the bytes
    // are there for what is enqueued on `stream` afterwards, which may also write over mine. Sizes agree pairwise,
    // else std::logic_error on all ranks. A piece of one's own is copied as well.
    virtual void exchange(std::span<const SentPiece> mine, std::span<const ReceivedPiece> theirs, Stream& stream,
                          CallTag tag) = 0;
    virtual std::string name() const = 0;  // "local", "nccl"
    // To be called once by each rank's thread, all at the same time, before its first exchange.
    virtual void connect() {}
    // Ends operations that wait for a rank that has failed, so that streams drain. Any thread; no exchange after it.
    virtual void abort() {}

    // Every rank's bytes, by rank; blocks the host until all have come. Throws PeerFailed.
    std::vector<Bytes> meet(Bytes bytes, CallTag tag);
    // The same with one value each.
    template <class T>
    std::vector<T> meet_values(const T& value, CallTag tag) {
        static_assert(std::is_trivially_copyable_v<T>);
        Bytes bytes(sizeof(T));
        std::memcpy(bytes.data(), &value, sizeof(T));
        std::vector<T> values;
        for (const Bytes& each : meet(std::move(bytes), tag))
            std::memcpy(&values.emplace_back(), each.data(), sizeof(T));
        return values;
    }

    // A sign of life: others wait for this rank from now on anew, and name the place if it never comes. Costs some tens
    // of nanoseconds; allowed from any thread that works for the rank.
    void alive(CallTag where);

  protected:
    RankGroup& group() const { return group_; }

  private:
    RankGroup& group_;
    const int rank_;
};

}  // namespace slab
