// NCCL is used in builds for CUDA that found its header and library. This file names the CUDA runtime's types only.
#include "kernels/runtime/nccl_comm.h"

#if defined(SLABSTREAM_NCCL)
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/runtime/runtime_cuda.h"

#define NCCL_CHECK(call)                                                                                  \
    do {                                                                                                  \
        const ncclResult_t result_ = (call);                                                              \
        if (result_ != ncclSuccess && result_ != ncclInProgress)                                          \
            throw DeviceError(std::string(#call ": ") + ncclGetErrorString(result_) + ", " __FILE__ ":" + \
                              std::to_string(__LINE__));                                                  \
    } while (false)

namespace slab {

namespace {

class NcclComm final : public Comm {
  public:
    NcclComm(RankGroup& group, int rank, Device& device) : Comm(group, rank), device_(device) {
        device.memory().charge(MemoryCategory::workspace, kNcclBytes, "NCCL");
    }
    ~NcclComm() override {
        close();
        device_.memory().release(MemoryCategory::workspace, kNcclBytes);
    }

    std::string name() const override { return "nccl"; }

    void connect() override {
        ncclUniqueId id{};
        if (rank() == 0) NCCL_CHECK(ncclGetUniqueId(&id));
        id = meet_values(id, {"connecting"}).front();
        device_.state().make_current();
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        config.maxCTAs = 4;  // a round's exchange is short, and memory is dearer
        NCCL_CHECK(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config));
        settle("connecting");
        meet({}, {"connected"});
        compare_pattern();
    }

    void abort() override {
        if (comm_ == nullptr || ended_.exchange(true)) return;
        (void)ncclCommAbort(comm_);
    }

    void exchange(std::span<const SentPiece> mine, std::span<const ReceivedPiece> theirs, Stream& stream,
                  CallTag tag) override {
        const size_t ranks = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
        if (mine.size() != ranks || theirs.size() != ranks) throw std::logic_error("exchange: a piece for each rank");
        check_sizes(mine, theirs, tag);
        const cudaStream_t on = native(stream);
        NCCL_CHECK(ncclGroupStart());
        for (size_t peer = 0; peer < ranks; ++peer) {
            if (peer == me) continue;
            const int to = static_cast<int>(peer);
            if (mine[peer].bytes != 0)
                NCCL_CHECK(ncclSend(mine[peer].data, mine[peer].bytes, ncclUint8, to, comm_, on));
            if (theirs[peer].bytes != 0)
                NCCL_CHECK(ncclRecv(theirs[peer].data, theirs[peer].bytes, ncclUint8, to, comm_, on));
        }
        NCCL_CHECK(ncclGroupEnd());
        settle("exchange at " + tag.text());
        if (mine[me].bytes != 0 && mine[me].data != theirs[me].data)
            copy_async(theirs[me].data, mine[me].data, mine[me].bytes, CopyKind::device_to_device, stream);
        meet({}, tag);
    }

  private:
    // Until NCCL has taken the call. Its own errors may come late or never, so time counts, and the group's failure.
    void settle(const std::string& what) {
        const auto due = std::chrono::steady_clock::now() + group().timeout();
        for (;;) {
            ncclResult_t state = ncclSuccess;
            NCCL_CHECK(ncclCommGetAsyncError(comm_, &state));
            if (state == ncclSuccess) return;
            if (state != ncclInProgress) throw DeviceError("NCCL, " + what + ": " + ncclGetErrorString(state));
            group().throw_if_failed();
            if (std::chrono::steady_clock::now() > due)
                throw DeviceError("NCCL, " + what + ": did not end within --comm-timeout");
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }

    void check_sizes(std::span<const SentPiece> mine, std::span<const ReceivedPiece> theirs, CallTag tag) {
        const size_t ranks = mine.size();
        std::vector<uint64_t> sizes;
        for (size_t r = 0; r < ranks; ++r) sizes.push_back(mine[r].bytes);
        for (size_t r = 0; r < ranks; ++r) sizes.push_back(theirs[r].bytes);
        Bytes message(sizes.size() * sizeof(uint64_t));
        std::memcpy(message.data(), sizes.data(), message.size());
        const std::vector<Bytes> all = meet(std::move(message), tag);
        const auto size_in = [&](size_t rank, size_t place) {
            uint64_t bytes = 0;
            std::memcpy(&bytes, all[rank].data() + place * sizeof bytes, sizeof bytes);
            return bytes;
        };
        for (size_t from = 0; from < ranks; ++from)
            for (size_t to = 0; to < ranks; ++to)
                if (size_in(from, to) != size_in(to, ranks + from))
                    throw std::logic_error("exchange at " + tag.text() + ": rank " + std::to_string(from) + " gives " +
                                           std::to_string(size_in(from, to)) + " bytes, rank " + std::to_string(to) +
                                           " takes " + std::to_string(size_in(to, ranks + from)));
    }

    // A first exchange connects all pairs, and shows that bytes arrive.
    void compare_pattern() {
        constexpr size_t kBytes = 1024;
        const size_t ranks = static_cast<size_t>(size());
        Stream stream(device_, "pattern");
        const DeviceBuffer buffer(device_, 2 * ranks * kBytes, MemoryCategory::workspace, "pattern of NCCL");
        std::vector<SentPiece> mine;
        std::vector<ReceivedPiece> theirs;
        for (size_t r = 0; r < ranks; ++r) {
            std::byte* const at = buffer.data() + 2 * r * kBytes;
            fill_async(at, static_cast<int>((static_cast<size_t>(rank()) * 16 + r) & 0xff), kBytes, stream);
            mine.push_back({at, kBytes});
            theirs.push_back({at + kBytes, kBytes});
        }
        exchange(mine, theirs, stream, {"pattern"});
        std::vector<std::byte> got(2 * ranks * kBytes);
        copy_async(got.data(), buffer.data(), got.size(), CopyKind::device_to_host, stream);
        stream.synchronize();
        for (size_t r = 0; r < ranks; ++r)
            if (got[(2 * r + 1) * kBytes] != static_cast<std::byte>((r * 16 + static_cast<size_t>(rank())) & 0xff))
                throw DeviceError("NCCL: other bytes came from rank " + std::to_string(r) +
                                  ". Hint: --transport local does without NCCL");
        meet({}, {"pattern compared"});
    }

    // Ends in an orderly way within 2 s, else at once.
    void close() noexcept {
        if (comm_ == nullptr || ended_.exchange(true)) return;
        const auto due = std::chrono::steady_clock::now() + std::chrono::seconds(2);
        ncclResult_t state = ncclCommFinalize(comm_);
        while (state == ncclInProgress && std::chrono::steady_clock::now() < due) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) break;
        }
        if (state == ncclSuccess)
            (void)ncclCommDestroy(comm_);
        else
            (void)ncclCommAbort(comm_);
    }

    Device& device_;
    ncclComm_t comm_ = nullptr;
    std::atomic<bool> ended_{false};
};

}  // namespace

std::string why_no_nccl() {
    return "";
}

std::unique_ptr<Comm> make_nccl_comm(RankGroup& group, int rank, Device& device) {
    return std::make_unique<NcclComm>(group, rank, device);
}

}  // namespace slab

#else

namespace slab {

std::string why_no_nccl() {
    if constexpr (kBackend == Backend::cpu) return "this build runs on the CPU, where NCCL has no part";
    return "this build has no NCCL: install its header and library (Debian: libnccl-dev of NVIDIA's repository) and "
           "run "
           "make again; it says what it found";
}

std::unique_ptr<Comm> make_nccl_comm(RankGroup&, int, Device&) {
    throw DeviceError(why_no_nccl());
}

}  // namespace slab
#endif
