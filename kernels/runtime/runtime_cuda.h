// What kernels/*.cu see of the runtime: the CUDA stream behind a Stream, the scope of an operation, the matrix library.
//
// Only .cu files and runtime.cpp include this; everything else stays with runtime.h. native() is the one way to a
// cudaStream_t. It also makes the stream's device current in the calling host thread, so that no kernel is launched on
// the wrong GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/runtime/cuda_check.h"
#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/runtime.h"
#include "kernels/runtime/runtime_state.h"

namespace slab {

// What CUDA itself takes of a GPU for this process, code of the kernels not counted.
struct ContextMemory {
    size_t bytes = 0;       // of the context
    size_t free_bytes = 0;  // on the GPU right after the context was made
};
// Makes the GPU's context, if this is the first call for it, and makes it current. The same answer at every call.
ContextMemory open_context(int device_index);

// An allowance beyond the context. The code of kernels and matrix library is loaded at first use, after the plan was
// made. The driver rounds each buffer up to its granularity of 2 MiB.
inline constexpr size_t kLibrariesBytes = size_t{64} << 20;

// Of all Devices: a range is registered for all of them, and where its pieces meet matters to each one's copies.
LockedRanges& locked_ranges();

struct Device::State : DeviceState {
    explicit State(const DeviceOptions& options);
    void make_current() const;  // in this host thread

    int index;
    ContextMemory context;
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

struct Event::State {
    State(Device& on_device, bool is_timed);
    ~State();

    Device& device;
    const bool timed;
    bool recorded = false;
    cudaEvent_t event = nullptr;
    // Of the stream of the latest record: its own first, then those of streams it had waited for.
    std::vector<std::shared_ptr<HostFailure>> failures;
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
