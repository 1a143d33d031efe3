// The runtime on CUDA: thin ownership over streams, events, device memory and page-locked host memory.
//
// All streams are non-blocking (the legacy stream orders nothing here), events carry no timing unless asked for, and
// every host thread that touches a stream first makes its device current. Memory is in runtime_cuda_memory.cu.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>
#include <utility>

#include "kernels/runtime/runtime_cuda.h"

namespace slab {

namespace {

constexpr size_t kPairs = 4096;  // pending timed pairs before the profile is folded

std::string error_text(cudaError_t error, const char* expression, const char* file, int line) {
    return std::string(expression) + " at " + file + ":" + std::to_string(line) + ": " + cudaGetErrorName(error) +
           ", " + cudaGetErrorString(error);
}

std::string error_text(cublasStatus_t status, const char* expression, const char* file, int line) {
    return std::string(expression) + " at " + file + ":" + std::to_string(line) + ": " + cublasLtGetStatusName(status) +
           ", " + cublasLtGetStatusString(status);
}

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

__global__ void delay_kernel(unsigned long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}

// Number of devices, or why there are none.
int count_devices(std::string* why) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return count;
    (void)cudaGetLastError();
    if (const size_t left_bytes = free_address_bytes(); error == cudaErrorMemoryAllocation && left_bytes != SIZE_MAX) {
        *why = "CUDA cannot start under the limit on this process's address space, of which " +
               memory_text(left_bytes) + " are left (" + cudaGetErrorName(error) +
               "). Hint: lift the limit (ulimit -v, -d); CUDA reserves addresses for all memory of machine and GPUs";
        return 0;
    }
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && driver > 0) {
        *why = "the GPU driver supports CUDA up to " + version_text(driver) + ", this build was made with CUDA " +
               version_text(runtime) + ". Hint: update the driver, or build with an older toolkit";
    } else if (driver == 0) {
        *why = "no GPU driver is loaded here. Hint: check nvidia-smi, or build for the CPU (make BACKEND=cpu)";
    } else {
        *why = std::string("no usable GPU is visible (") + cudaGetErrorName(error) +
               "). Hint: check nvidia-smi and CUDA_VISIBLE_DEVICES, or build for the CPU (make BACKEND=cpu)";
    }
    return 0;
}

[[noreturn]] void report(HostFailure& failure) {
    failure.reported.store(true);
    throw DeviceError(failure.text);
}

void report_any(const std::vector<std::shared_ptr<HostFailure>>& failures) {
    for (const auto& failure : failures)
        if (failure->set.load()) report(*failure);
}

}  // namespace

void throw_cuda_error(cudaError_t error, const char* expression, const char* file, int line) {
    (void)cudaGetLastError();
    throw DeviceError(error_text(error, expression, file, line));
}

void throw_cublas_error(cublasStatus_t status, const char* expression, const char* file, int line) {
    (void)cudaGetLastError();
    throw DeviceError(error_text(status, expression, file, line));
}

// After a fault every call fails in the same way, those of thousands of destructors too: the warning is printed once.
void warn_cuda_error(cudaError_t error, const char* expression, const char* file, int line) {
    (void)cudaGetLastError();
    static std::atomic<int> printed{cudaSuccess};
    if (printed.exchange(error) == error) return;
    std::fprintf(stderr, "warning: %s\n", error_text(error, expression, file, line).c_str());
}

void warn_cublas_error(cublasStatus_t status, const char* expression, const char* file, int line) {
    (void)cudaGetLastError();
    std::fprintf(stderr, "warning: %s\n", error_text(status, expression, file, line).c_str());
}

// ----------------------------------------------------------------------------------------------------------------
// Device

int device_count() {
    std::string why;
    return count_devices(&why);
}

Device::State::State(const DeviceOptions& options) : DeviceState(options), index(options.index) {
    std::string why;
    const int count = count_devices(&why);
    if (count == 0) throw DeviceError("this build runs on CUDA, but " + why);
    if (index < 0 || index >= count) {
        throw std::invalid_argument("GPU " + std::to_string(index) + " given, 0 to " + std::to_string(count - 1) +
                                    " are here. Hint: nvidia-smi -L lists them");
    }
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    name = properties.name;
    const std::string capability = std::to_string(properties.major) + "." + std::to_string(properties.minor);
    if (properties.major < 8) {
        throw DeviceError(
            "GPU " + std::to_string(index) + " (" + name + ") has compute capability " + capability +
            ", 8.0 or higher is wanted (bf16 on tensor cores). Hint: choose another GPU (CUDA_VISIBLE_DEVICES=N), or "
            "build for the CPU (make BACKEND=cpu)");
    }
    context = open_context(index);
    make_current();
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, delay_kernel) != cudaSuccess) {
        (void)cudaGetLastError();
        throw DeviceError("this build has no code for GPU " + std::to_string(index) + " (" + name +
                          ", compute capability " + capability +
                          "). Hint: make CUDA_ARCHS=" + std::to_string(properties.major * 10 + properties.minor));
    }
    char pci_bus_id[32];
    CUDA_CHECK(cudaDeviceGetPCIBusId(pci_bus_id, sizeof pci_bus_id, index));
    numa_node = numa_node_of(pci_bus_id);
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    // Of what is free now, 95%; the context is there already and counts besides. Those who share a GPU share both.
    const size_t sharing = static_cast<size_t>(options.sharing);
    available_bytes = (free_bytes + context.bytes) / sharing;
    memory = std::make_unique<MemoryAccount>(
        options.budget_bytes != 0 ? options.budget_bytes / sharing : available_bytes - free_bytes / 20 / sharing,
        (context.bytes + kLibrariesBytes) / sharing);
}

void reach_peer(Device& device, Device& peer) {
    const int mine = device.state().index, other = peer.state().index;
    int possible = 0;
    if (mine != other) CUDA_CHECK(cudaDeviceCanAccessPeer(&possible, mine, other));
    if (possible == 0) return;
    device.state().make_current();
    const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
    (void)cudaGetLastError();
    if (error != cudaErrorPeerAccessAlreadyEnabled) CUDA_CHECK(error);
}

void Device::State::make_current() const {
    int current = -1;
    CUDA_CHECK(cudaGetDevice(&current));
    if (current != index) CUDA_CHECK(cudaSetDevice(index));
}

// ----------------------------------------------------------------------------------------------------------------
// Stream

Stream::State::State(Device& on_device, std::string its_name, size_t workspace_bytes)
    : device(on_device),
      name(std::move(its_name)),
      workspace(on_device, workspace_bytes, MemoryCategory::workspace, "workspace of stream " + name) {
    device.state().make_current();
    if (workspace_bytes > 0) CUBLAS_CHECK(cublasLtCreate(&blas));
    try {
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    } catch (...) {
        if (blas != nullptr) CUBLAS_WARN(cublasLtDestroy(blas));
        throw;
    }
    device.state().add(this);
}

Stream::State::~State() {
    device.state().remove(this);
    CUDA_WARN(cudaSetDevice(device.state().index));
    CUDA_WARN(cudaStreamSynchronize(stream));
    if (failures.front()->set.load() && !failures.front()->reported.load()) {
        std::fprintf(stderr, "warning: %s (nobody synchronised with the stream after it)\n",
                     failures.front()->text.c_str());
    }
    spare.insert(spare.end(), pending.begin(), pending.end());
    for (const Pair& pair : spare) {
        CUDA_WARN(cudaEventDestroy(pair.begin));
        CUDA_WARN(cudaEventDestroy(pair.end));
    }
    matmul_plans.reset();
    if (blas != nullptr) CUBLAS_WARN(cublasLtDestroy(blas));
    CUDA_WARN(cudaStreamDestroy(stream));
}

void Stream::State::synchronize() {
    device.state().make_current();
    const cudaError_t error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        throw DeviceError("stream '" + name + "': " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error) +
                          " (in '" + latest_op + "' or an operation enqueued before it)");
    }
    report_any(failures);
}

void Stream::State::fold_profile() {
    if (pending.empty()) return;
    CUDA_CHECK(cudaEventSynchronize(pending.back().end));
    for (const Pair& pair : pending) {
        float ms = 0;
        CUDA_CHECK(cudaEventElapsedTime(&ms, pair.begin, pair.end));
        profile_ms[pair.op] += ms;
    }
    spare.insert(spare.end(), pending.begin(), pending.end());
    pending.clear();
}

cudaStream_t native(Stream& stream) {
    stream.device().state().make_current();
    return stream.state().stream;
}

void Stream::host_function(const char* op, std::function<void()> fn) {
    struct Call {
        std::string op, stream;
        std::function<void()> fn;
        std::vector<std::shared_ptr<HostFailure>> failures;  // as the stream's
    };
    const OpScope scope(*this, "host function");
    auto call = std::make_unique<Call>(Call{op, name(), std::move(fn), state_->failures});
    const auto run = [](void* data) {
        const std::unique_ptr<Call> mine(static_cast<Call*>(data));
        for (const auto& failure : mine->failures)
            if (failure->set.load()) return;
        HostFailure& failure = *mine->failures.front();
        const auto fail = [&](const char* what) {
            failure.text = "stream '" + mine->stream + "', operation '" + mine->op + "': " + what;
            failure.set.store(true);
        };
        try {
            mine->fn();
        } catch (const std::exception& e) {
            fail(e.what());
        } catch (...) {
            fail("unknown exception");
        }
    };
    CUDA_CHECK(cudaLaunchHostFunc(native(*this), run, call.get()));
    (void)call.release();  // the call frees itself
}

void Stream::enqueue(const char* op, std::function<void(ThreadPool&)> fn) {
    host_function(op, [fn = std::move(fn), &pool = device().pool()] { fn(pool); });
}

OpScope::OpScope(Stream& stream, const char* op) : state_(stream.state()), timed_(state_.profiling) {
    state_.latest_op = op;
    if (!timed_) return;
    state_.device.state().make_current();
    if (state_.pending.size() >= kPairs) state_.fold_profile();
    Stream::State::Pair pair{op, nullptr, nullptr};
    if (!state_.spare.empty()) {
        pair = state_.spare.back();
        pair.op = op;
        state_.spare.pop_back();
    } else {
        CUDA_CHECK(cudaEventCreate(&pair.begin));
        CUDA_CHECK(cudaEventCreate(&pair.end));
    }
    state_.pending.push_back(pair);
    CUDA_CHECK(cudaEventRecord(pair.begin, state_.stream));
}

OpScope::~OpScope() {
    if (timed_) CUDA_WARN(cudaEventRecord(state_.pending.back().end, state_.stream));
}

// -----------------------------------------------------------------------------------------------------------------
// Event

Event::State::State(Device& on_device, bool is_timed) : device(on_device), timed(is_timed) {
    device.state().make_current();
    CUDA_CHECK(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
}

Event::State::~State() {
    CUDA_WARN(cudaEventDestroy(event));
}

void Event::record(Stream& stream) {
    CUDA_CHECK(cudaEventRecord(state_->event, native(stream)));
    state_->recorded = true;
    state_->failures = stream.state().failures;
}

bool Event::recorded() const {
    return state_->recorded;
}

bool Event::complete() const {
    if (!state_->recorded) return true;
    const cudaError_t error = cudaEventQuery(state_->event);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
    }
    CUDA_CHECK(error);
    return true;
}

void Event::synchronize() const {
    if (!state_->recorded) return;
    CUDA_CHECK(cudaEventSynchronize(state_->event));
    report_any(state_->failures);
}

void Stream::wait(const Event& event) {
    if (!event.recorded()) return;
    CUDA_CHECK(cudaStreamWaitEvent(native(*this), event.state().event, 0));
    std::vector<std::shared_ptr<HostFailure>>& known = state_->failures;
    for (const auto& failure : event.state().failures)
        if (std::find(known.begin(), known.end(), failure) == known.end()) known.push_back(failure);
}

// ----------------------------------------------------------------------------------------------------------------
// Copies

namespace backend {

float elapsed_ms(const Event::State& start, const Event::State& end) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, start.event, end.event));
    return ms;
}

void copy(void* dst, const void* src, size_t bytes, CopyKind kind, Stream& stream) {
    const OpScope scope(stream, "copy");
    cudaMemcpyKind cuda_kind = cudaMemcpyDeviceToDevice;
    const void* host = nullptr;
    if (kind == CopyKind::host_to_device) {
        cuda_kind = cudaMemcpyHostToDevice;
        host = src;
    } else if (kind == CopyKind::device_to_host) {
        cuda_kind = cudaMemcpyDeviceToHost;
        host = dst;
    }
    for (size_t at = 0; at < bytes;) {
        const size_t left_bytes = bytes - at;
        const size_t part_bytes =
            host == nullptr ? left_bytes
                            : locked_ranges().copyable_bytes(static_cast<const std::byte*>(host) + at, left_bytes);
        CUDA_CHECK(cudaMemcpyAsync(static_cast<std::byte*>(dst) + at, static_cast<const std::byte*>(src) + at,
                                   part_bytes, cuda_kind, native(stream)));
        at += part_bytes;
    }
}

void fill(void* dst, int byte_value, size_t bytes, Stream& stream) {
    const OpScope scope(stream, "fill");
    CUDA_CHECK(cudaMemsetAsync(dst, byte_value, bytes, native(stream)));
}

}  // namespace backend

void delay_async(int microseconds, Stream& stream) {
    const OpScope scope(stream, "delay");
    delay_kernel<<<1, 1, 0, native(stream)>>>(static_cast<unsigned long long>(microseconds) * 1000);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace slab
