// Memory on CUDA: device buffers, page-locked host buffers, and what the driver itself takes of the GPU.
//
// Host memory is page-locked by registering pages that many threads have touched, in pieces of 1 GiB: cudaHostAlloc
// touches them in one thread and one huge registration may never end. Copies are cut where pieces meet. The driver's
// management library knows the context's size; CUDA does not, as it cannot answer before there is a context. The
// library (NVML) is opened at run time: a driver brings it, a toolkit need not.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/runtime/runtime_cuda.h"

namespace slab {

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kRegisteredBytes = 1024 * kMiB;  // the most that one cudaHostRegister gets
constexpr size_t kTouchedBytes = 16 * kMiB;       // what one tile of the pool touches
constexpr size_t kPageBytes = 4096;

// What the driver counts of one GPU.
class ManagementLibrary {
  public:
    explicit ManagementLibrary(int device_index) {
        char pci_bus_id[32];
        CUDA_CHECK(cudaDeviceGetPCIBusId(pci_bus_id, sizeof pci_bus_id, device_index));
        library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library_ == nullptr) return;
        const auto start = symbol<int (*)()>("nvmlInit_v2");
        const auto find = symbol<int (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
        stop_ = symbol<int (*)()>("nvmlShutdown");
        memory_of_ = symbol<int (*)(void*, Memory*)>("nvmlDeviceGetMemoryInfo");
        processes_of_ = symbol<int (*)(void*, unsigned*, Process*)>("nvmlDeviceGetComputeRunningProcesses_v3");
        started_ = start != nullptr && find != nullptr && stop_ != nullptr && start() == 0;
        if (!started_ || find(pci_bus_id, &gpu_) != 0) gpu_ = nullptr;
    }
    ~ManagementLibrary() {
        if (started_) (void)stop_();
        if (library_ != nullptr) dlclose(library_);
    }
    ManagementLibrary(const ManagementLibrary&) = delete;
    ManagementLibrary& operator=(const ManagementLibrary&) = delete;

    // Bytes that no process uses; nullopt where the library is missing or does not answer.
    std::optional<size_t> free_bytes() const {
        Memory memory{};
        if (gpu_ == nullptr || memory_of_ == nullptr || memory_of_(gpu_, &memory) != 0) return std::nullopt;
        return static_cast<size_t>(memory.free);
    }
    // Bytes that this process uses; nullopt also where the driver does not tell processes apart, or knows this one by
    // the number that it has outside of its container.
    std::optional<size_t> process_bytes() const {
        if (gpu_ == nullptr || processes_of_ == nullptr) return std::nullopt;
        std::vector<Process> processes(256);
        unsigned count = static_cast<unsigned>(processes.size());
        if (processes_of_(gpu_, &count, processes.data()) != 0) return std::nullopt;
        processes.resize(std::min<size_t>(count, processes.size()));
        const auto own = static_cast<unsigned>(getpid());
        const auto at =
            std::find_if(processes.begin(), processes.end(), [own](const Process& p) { return p.id == own; });
        if (at == processes.end() || at->used_bytes == kNotAvailable) return std::nullopt;
        return static_cast<size_t>(at->used_bytes);
    }

  private:
    static constexpr unsigned long long kNotAvailable = ~0ull;
    struct Memory {  // nvmlMemory_t
        unsigned long long total, free, used;
    };
    struct Process {  // nvmlProcessInfo_t of the third version of the call
        unsigned id;
        unsigned long long used_bytes;
        unsigned gpu_instance, compute_instance;
    };
    template <class F>
    F symbol(const char* name) const {
        return reinterpret_cast<F>(dlsym(library_, name));
    }

    void* library_ = nullptr;
    void* gpu_ = nullptr;
    int (*memory_of_)(void*, Memory*) = nullptr;
    int (*processes_of_)(void*, unsigned*, Process*) = nullptr;
    int (*stop_)() = nullptr;
    bool started_ = false;
};

ContextMemory make_context(int device_index) {
    // No context can be smaller, and a difference above the upper bound is another process's doing.
    constexpr size_t least_bytes = 128 * kMiB, most_bytes = 1024 * kMiB;
    const auto plausible = [](size_t bytes) { return bytes >= least_bytes && bytes <= most_bytes; };
    const ManagementLibrary library(device_index);
    const std::optional<size_t> before_bytes = library.free_bytes();
    CUDA_CHECK(cudaSetDevice(device_index));
    // The driver sets aside a stack for every thread that fits the GPU, 1 KiB each by default: 200 MiB more on a GPU of
    // 132 multiprocessors than kernels without recursion need. Kernels that spill more get more when they are launched.
    constexpr size_t stack_bytes = 256;
    CUDA_CHECK(cudaDeviceSetLimit(cudaLimitStackSize, stack_bytes));
    CUDA_CHECK(cudaFree(nullptr));  // makes the context, if the limit has not
    ContextMemory context;
    size_t total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&context.free_bytes, &total_bytes));
    const std::optional<size_t> after_bytes = library.free_bytes(), own_bytes = library.process_bytes();
    if (own_bytes && plausible(*own_bytes)) {
        context.bytes = *own_bytes;
    } else if (before_bytes && after_bytes && *before_bytes > *after_bytes && plausible(*before_bytes - *after_bytes)) {
        context.bytes = *before_bytes - *after_bytes;  // with what other processes took or gave back meanwhile
    } else {
        // Not measured, or the process had a context before. What is taken is the context and other processes, which
        // CUDA does not tell apart: a context stays between these bounds.
        context.bytes = std::clamp(total_bytes - context.free_bytes, 256 * kMiB, 576 * kMiB);
    }
    return context;
}

}  // namespace

// A process has one context for each GPU, made once and kept; so what it took is known once and kept as well.
ContextMemory open_context(int device_index) {
    static std::mutex mutex;
    static std::map<int, ContextMemory> contexts;
    const std::lock_guard lock(mutex);
    const auto known = contexts.find(device_index);
    if (known != contexts.end()) {
        CUDA_CHECK(cudaSetDevice(device_index));
        return known->second;
    }
    return contexts.emplace(device_index, make_context(device_index)).first->second;
}

MeasuredMemory Device::measured_memory() const {
    const ContextMemory& context = state_->context;
    // Less than the context alone would be another process, one of our number outside of this container.
    const auto own_bytes = ManagementLibrary(state_->index).process_bytes();
    if (own_bytes && *own_bytes >= context.bytes) return {*own_bytes, true};
    state_->make_current();
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return {context.bytes + (context.free_bytes > free_bytes ? context.free_bytes - free_bytes : 0), false};
}

// -----------------------------------------------------------------------------------------------------------------
// Device memory

namespace backend {

std::byte* allocate(Device& device, size_t bytes, MemoryCategory category, const std::string& what) {
    device.state().make_current();
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, bytes);  // aligned to 256 bytes and more
    if (error == cudaSuccess) return static_cast<std::byte*>(memory);
    (void)cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    throw DeviceError("out of GPU memory: '" + what + "' (" + name_of(category) + ") needs " + std::to_string(bytes) +
                      " bytes, " + std::to_string(free_bytes) + " of " + std::to_string(total_bytes) + " are free (" +
                      cudaGetErrorName(error) +
                      "), though the budget allowed it. Hint: do other programs use this GPU? Lower the budget");
}

void free(std::byte* data) noexcept {
    CUDA_WARN(cudaFree(data));
}

}  // namespace backend

// -----------------------------------------------------------------------------------------------------------------
// Page-locked host memory

LockedRanges& locked_ranges() {
    static LockedRanges ranges(kRegisteredBytes);
    return ranges;
}

void lock_pages(Device& device, std::byte* data, size_t bytes, const std::string& what) {
    if (bytes == 0) return;
    Device::State& state = device.state();
    state.pinned.charge(bytes, what);
    state.make_current();
    for (size_t at = 0; at < bytes; at += kRegisteredBytes) {
        const size_t piece_bytes = std::min(kRegisteredBytes, bytes - at);
        const cudaError_t error = cudaHostRegister(data + at, piece_bytes, cudaHostRegisterPortable);
        if (error == cudaSuccess) continue;
        (void)cudaGetLastError();  // else the next launch would report it
        for (size_t locked = 0; locked < at; locked += kRegisteredBytes) CUDA_WARN(cudaHostUnregister(data + locked));
        state.pinned.release(bytes);
        throw PinnedLimit(pinned_limit_text(
            what, bytes, state.pinned.used_bytes() + at,
            "the system refused " + std::to_string(piece_bytes) + " more (" + cudaGetErrorName(error) + ")"));
    }
    locked_ranges().add(data, bytes);
}

void unlock_pages(Device& device, std::byte* data, size_t bytes) {
    if (bytes == 0) return;
    Device::State& state = device.state();
    locked_ranges().remove(data);
    CUDA_WARN(cudaSetDevice(state.index));
    for (size_t at = 0; at < bytes; at += kRegisteredBytes) CUDA_WARN(cudaHostUnregister(data + at));
    state.pinned.release(bytes);
}

namespace backend {

std::byte* allocate_pinned(Device& device, size_t bytes, const std::string& what) {
    HostMemory memory(bytes, device.numa_node(), what);
    device.pool().parallel_ranges(bytes, kTouchedBytes, [&memory](size_t begin, size_t end) {
        for (size_t at = begin; at < end; at += kPageBytes) memory.data()[at] = std::byte{0};
    });
    lock_pages(device, memory.data(), bytes, what);
    return memory.release();
}

void free_pinned(Device& device, std::byte* data, size_t bytes) noexcept {
    unlock_pages(device, data, bytes);
    unmap_pages(data, bytes);
}

}  // namespace backend

}  // namespace slab
