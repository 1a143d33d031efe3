// What the two backends share behind runtime.h, and the operations that each has to bring.
//
// runtime.cpp holds all that reads the same for both: moves, accounting, forwarding, checks. A backend derives its
// Device::State from DeviceState and defines Stream::State, Event::State and the functions below. For kernels/runtime/
// and CUDA's kernels alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/runtime.h"

namespace slab {

struct DeviceState {
    explicit DeviceState(const DeviceOptions& options) : pool(options.threads), pinned(options.pinned_limit_bytes) {}

    void add(Stream::State* stream) {
        const std::lock_guard lock(streams_mutex);
        streams.push_back(stream);
    }
    void remove(Stream::State* stream) {
        const std::lock_guard lock(streams_mutex);
        std::erase(streams, stream);
    }

    std::string name;
    ThreadPool pool;
    PinnedAccount pinned;
    std::unique_ptr<MemoryAccount> memory;
    size_t available_bytes = 0;
    int numa_node = -1;
    std::atomic<uint64_t> host_to_device_bytes{0}, device_to_host_bytes{0};
    std::mutex streams_mutex;  // start-up and tests only
    std::vector<Stream::State*> streams;
};

namespace backend {

// Memory for `bytes` > 0, charged already. Throws DeviceError naming `what`.
std::byte* allocate(Device& device, size_t bytes, MemoryCategory category, const std::string& what);
void free(std::byte* data) noexcept;
// Page-locked and counted; bytes > 0. Throws PinnedLimit, or DeviceError where there is not that much memory.
std::byte* allocate_pinned(Device& device, size_t bytes, const std::string& what);
void free_pinned(Device& device, std::byte* data, size_t bytes) noexcept;

// bytes > 0; traffic is counted by the caller.
void copy(void* dst, const void* src, size_t bytes, CopyKind kind, Stream& stream);
void fill(void* dst, int byte_value, size_t bytes, Stream& stream);
// Both timed, recorded and complete.
float elapsed_ms(const Event::State& start, const Event::State& end);

}  // namespace backend

}  // namespace slab
