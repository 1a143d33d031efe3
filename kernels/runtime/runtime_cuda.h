// What kernels/*.cu see of the runtime: the CUDA stream behind a Stream, the scope of an operation, the matrix library.
//
// Only .cu files include this; everything else stays with runtime.h. native() is the one way to a cudaStream_t, since
// it also makes the stream's device current in the calling host thread: a kernel can then never be launched on the
// wrong GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/runtime/cuda_check.h"
#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/runtime.h"

namespace slab {

// What CUDA itself takes of a GPU for this process, code of the kernels not counted.
struct ContextMemory {
    size_t bytes = 0;       // of the context
    size_t free_bytes = 0;  // on the GPU right after the context was made
};
// Makes the GPU's context, if this is the first call for it, and makes it current. The same answer at every call.
ContextMemory open_context(int device_index);

// What kernels and matrix library take beyond the context once their code is loaded, which happens at first use, and
// what the driver adds in rounding each buffer up to its granularity of 2 MiB. An allowance: the plan is made before.
inline constexpr size_t kLibrariesBytes = size_t{64} << 20;

struct Device::State {
    explicit State(const DeviceOptions& options);
    void make_current() const;  // in this host thread

    int index;
    std::string name;
    ContextMemory context;
    size_t available_bytes = 0;
    int numa_node = -1;
    ThreadPool pool;
    std::unique_ptr<MemoryAccount> memory;  // made once it is known what is free
    PinnedAccount pinned;
    // How many of `bytes` from `host` on one copy may take: it must not cross from one registration into the next.
    size_t copyable_bytes(const void* host, size_t bytes);
    std::mutex locked_mutex;
    std::map<const std::byte*, size_t> locked_bytes;  // of each page-locked range, by its first byte
    std::atomic<uint64_t> host_to_device_bytes{0}, device_to_host_bytes{0};
    std::mutex streams_mutex;  // start-up and tests only
    std::vector<Stream::State*> streams;
};

// The first exception of a stream's host functions; kept alive by those still pending, and by events.
struct HostFailure {
    std::atomic<bool> set{false};
    std::atomic<bool> reported{false};
    std::string text;  // written before set
};

struct Stream::State {
    State(Device& on_device, std::string its_name, size_t workspace_bytes);
    ~State();
    void synchronize();
    void fold_profile();  // waits for the pending pairs and adds them to profile_ms

    Device& device;
    const std::string name;
    cudaStream_t stream = nullptr;
    DeviceBuffer workspace;              // for matrix products, of the size the stream was made with
    cublasLtHandle_t blas = nullptr;     // null in a stream without workspace
    std::shared_ptr<void> matmul_plans;  // matmul.cu's: the algorithm chosen for each shape
    const char* latest_op = "none";      // a string literal; named when the device reports a fault
    // Its own, then those of the streams whose events it has waited for.
    std::vector<std::shared_ptr<HostFailure>> failures{std::make_shared<HostFailure>()};

    struct Pair {
        const char* op;
        cudaEvent_t begin, end;
    };
    bool profiling = false;
    std::vector<Pair> pending, spare;
    std::map<std::string, double> profile_ms;
};

cudaStream_t native(Stream& stream);

// Lives around the launches of one operation: names it in faults, and times it while the stream is profiled.
// op: a string literal.
class OpScope {
  public:
    OpScope(Stream& stream, const char* op);
    ~OpScope();
    OpScope(const OpScope&) = delete;
    OpScope& operator=(const OpScope&) = delete;

  private:
    Stream::State& state_;
    bool timed_;
};

}  // namespace slab
