// Devices, streams, events and buffers: one meaning, two implementations.
//
// On CUDA (runtime_cuda.cu) this is thin ownership over CUDA's own. On the CPU (runtime_cpu.cpp) a Stream is a worker
// thread with a first-in-first-out queue, and "device" memory is ordinary memory with the same accounting. There too
// work is enqueued and the caller runs ahead, so the whole ordering protocol runs, and is checked by ThreadSanitizer,
// without a GPU. runtime.cpp holds what both share.
// Invariant: nothing here orders two streams except Stream::wait. Streams share no lock but, on CUDA, a short look at
// what is page-locked. Everything is move-only. Nothing is global but what belongs to the process: CUDA's context of a
// GPU, and the page-locked ranges.
// Errors: an error inside a host function surfaces as a DeviceError, with the operation's name, at the next
// synchronize(). That holds for its stream, for a stream that waits for an event recorded on it, and for an event
// recorded on either. Later host functions there are skipped (on the CPU that is all work); a GPU's kernels run on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kernels/runtime/device_error.h"
#include "kernels/runtime/memory_account.h"
#include "kernels/runtime/thread_pool.h"

namespace slab {

enum class Backend { cpu, cuda };
#if defined(SLABSTREAM_CUDA)
inline constexpr Backend kBackend = Backend::cuda;
#else
inline constexpr Backend kBackend = Backend::cpu;
#endif

enum class CopyKind { host_to_device, device_to_host, device_to_device };

// Bytes moved by copy_async since the device was opened, counted when enqueued.
struct Traffic {
    uint64_t host_to_device_bytes = 0, device_to_host_bytes = 0;
};

struct DeviceOptions {
    int index = 0;                  // which GPU
    int threads = 0;                // CPU kernels and host work; 0 = the machine's cores
    size_t budget_bytes = 0;        // --vram-budget; 0 = what is free less 5% (CUDA), no limit (CPU)
    size_t pinned_limit_bytes = 0;  // page-lock no more host memory than this; 0 = what the system grants
    int sharing = 1;                // Devices of this process on the same GPU; each gets an equal part of the budget
};

// Device memory in use, driver and libraries included, to be compared with the plan. On CUDA the driver's answer; on
// the CPU the account's.
struct MeasuredMemory {
    size_t bytes;
    bool of_process;  // false: the driver does not tell processes apart, and others' use since the first Device counts
};

int device_count();  // usable devices here; 1 on the CPU, 0 in CUDA without a GPU or with a driver that does not work

// One GPU, or the CPU standing in for it. Must outlive every stream, event and buffer made from it.
class Device {
  public:
    // Throws std::invalid_argument when there is no such GPU, DeviceError when none can be used.
    explicit Device(const DeviceOptions& options = {});
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    MemoryAccount& memory();
    ThreadPool& pool();
    std::string name() const;          // "CPU, 2 threads" or the GPU's name
    size_t host_pinned_bytes() const;  // page-locked now
    size_t available_bytes() const;    // what was free when this was made, and what its context took; 0 on the CPU
    int numa_node() const;             // whose memory is next to the GPU; -1: there is one node, or it is not known
    MeasuredMemory measured_memory() const;
    Traffic traffic() const;
    void synchronize();  // start-up and tests only

    struct State;
    State& state() { return *state_; }

  private:
    std::unique_ptr<State> state_;
};

// Lets kernels and copies of `device` reach the memory of `peer` directly, where the machine can; else copies go
// through the host. At the start alone.
void reach_peer(Device& device, Device& peer);

class Event;

class Stream {
  public:
    // name: shown in errors and traces. workspace_bytes: the fixed scratch memory of matrix products on this stream
    // (MemoryCategory::workspace); a constant, since its size decides which algorithm a library picks.
    Stream(Device& device, std::string name, size_t workspace_bytes = 0);
    ~Stream();  // waits for its work; a pending error is printed, not thrown
    Stream(Stream&&) noexcept;
    Stream& operator=(Stream&&) noexcept;

    Device& device() const;
    const std::string& name() const;

    // Work enqueued from now on starts after the latest record of the event, as of this call. An event never recorded:
    // no-op in CUDA; std::logic_error on the CPU, so that tests find the protocol error.
    void wait(const Event& event);

    // Blocks the host until the queue is empty; throws the first error of an enqueued operation.
    void synchronize();

    // Runs fn on the host, in stream order. fn must not call into a stream or event.
    void host_function(const char* op, std::function<void()> fn);

    // A host function whose tiles run on the device's pool. On the CPU backend these are the kernels, and may touch
    // device memory; in CUDA they may not.
    void enqueue(const char* op, std::function<void(ThreadPool&)> fn);

    // Time spent in each operation since profiling was switched on, by operation name. Synchronises.
    void set_profiling(bool on);
    std::map<std::string, double> profile_ms();

    struct State;
    State& state() const { return *state_; }

  private:
    std::unique_ptr<State> state_;
};

class Event {
  public:
    explicit Event(Device& device, bool timed = false);
    ~Event();
    Event(Event&&) noexcept;
    Event& operator=(Event&&) noexcept;

    void record(Stream& stream);
    bool recorded() const;     // record() was called at least once
    bool complete() const;     // the latest record has been reached (true when never recorded)
    void synchronize() const;  // blocks the host until it is; throws the stream's pending error

    struct State;
    State& state() const { return *state_; }

  private:
    std::unique_ptr<State> state_;
};

// Milliseconds between two timed events that are complete.
float elapsed_ms(const Event& start, const Event& end);

// Device memory, 256-byte aligned. Freed in the destructor, which waits for nothing: owners synchronise their streams
// before letting buffers go.
class DeviceBuffer {
  public:
    DeviceBuffer() = default;
    DeviceBuffer(Device& device, size_t bytes, MemoryCategory category, const std::string& what);  // throws OutOfBudget
    ~DeviceBuffer();
    DeviceBuffer(DeviceBuffer&&) noexcept;
    DeviceBuffer& operator=(DeviceBuffer&&) noexcept;

    std::byte* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }

  private:
    Device* device_ = nullptr;
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
    MemoryCategory category_ = MemoryCategory::workspace;
};

// The system refused to page-lock more host memory; nothing was allocated.
struct PinnedLimit : DeviceError {
    using DeviceError::DeviceError;
};

// Page-locked host memory (plain memory on the CPU backend), 256-byte aligned, exactly `bytes` long. Throws
// PinnedLimit, or DeviceError where the machine has not that much memory.
class PinnedBuffer {
  public:
    PinnedBuffer() = default;
    PinnedBuffer(Device& device, size_t bytes, const std::string& what);
    ~PinnedBuffer();
    PinnedBuffer(PinnedBuffer&&) noexcept;
    PinnedBuffer& operator=(PinnedBuffer&&) noexcept;

    std::byte* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }

  private:
    Device* device_ = nullptr;
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
};

void copy_async(void* dst, const void* src, size_t bytes, CopyKind kind, Stream& stream);
void fill_async(void* dst, int byte_value, size_t bytes, Stream& stream);
// Holds the stream up for about this long: how tests shake the ordering of two streams.
void delay_async(int microseconds, Stream& stream);

}  // namespace slab
