// The part of the runtime that is the same for both backends: ownership, accounting, forwarding, checks.
//
// Order, errors and memory itself are the backend's: runtime_cpu.cpp, runtime_cuda.cu, runtime_cuda_memory.cu.
#include "kernels/runtime/runtime.h"

#include <cassert>
#include <stdexcept>
#include <utility>

#if defined(SLABSTREAM_CUDA)
#include "kernels/runtime/runtime_cuda.h"
#else
#include "kernels/runtime/runtime_cpu.h"
#endif

namespace slab {

// ----------------------------------------------------------------------------------------------------------------
// Device

Device::Device(const DeviceOptions& options) : state_(std::make_unique<State>(options)) {}
Device::~Device() {
    assert(state_->streams.empty() && "a stream outlives its device");
}

MemoryAccount& Device::memory() {
    return *state_->memory;
}
ThreadPool& Device::pool() {
    return state_->pool;
}
std::string Device::name() const {
    return state_->name;
}
size_t Device::host_pinned_bytes() const {
    return state_->pinned.used_bytes();
}
size_t Device::available_bytes() const {
    return state_->available_bytes;
}
int Device::numa_node() const {
    return state_->numa_node;
}

Traffic Device::traffic() const {
    return {state_->host_to_device_bytes.load(std::memory_order_relaxed),
            state_->device_to_host_bytes.load(std::memory_order_relaxed)};
}

void Device::synchronize() {
    const std::lock_guard lock(state_->streams_mutex);
    for (Stream::State* stream : state_->streams) stream->synchronize();
}

// ----------------------------------------------------------------------------------------------------------------
// Stream and Event

Stream::Stream(Device& device, std::string name, size_t workspace_bytes)
    : state_(std::make_unique<State>(device, std::move(name), workspace_bytes)) {}
Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;

Device& Stream::device() const {
    return state_->device;
}
const std::string& Stream::name() const {
    return state_->name;
}
void Stream::synchronize() {
    state_->synchronize();
}

void Stream::set_profiling(bool on) {
    synchronize();
    state_->fold_profile();
    state_->profiling = on;
    if (on) state_->profile_ms.clear();
}

std::map<std::string, double> Stream::profile_ms() {
    synchronize();
    state_->fold_profile();
    return state_->profile_ms;
}

Event::Event(Device& device, bool timed) : state_(std::make_unique<State>(device, timed)) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

float elapsed_ms(const Event& start, const Event& end) {
    for (const Event* event : {&start, &end}) {
        if (!event->state().timed) throw std::logic_error("elapsed_ms: an event was made without timing");
        if (!event->recorded() || !event->complete())
            throw std::logic_error("elapsed_ms: an event is not recorded or not complete");
    }
    return backend::elapsed_ms(start.state(), end.state());
}

// ----------------------------------------------------------------------------------------------------------------
// Buffers

DeviceBuffer::DeviceBuffer(Device& device, size_t bytes, MemoryCategory category, const std::string& what)
    : device_(&device), bytes_(bytes), category_(category) {
    device.memory().charge(category, bytes, what);
    if (bytes == 0) return;
    try {
        data_ = backend::allocate(device, bytes, category, what);
    } catch (...) {
        device.memory().release(category, bytes);
        throw;
    }
}

DeviceBuffer::~DeviceBuffer() {
    if (device_ == nullptr) return;
    if (data_ != nullptr) backend::free(data_);
    device_->memory().release(category_, bytes_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      category_(other.category_) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer taken(std::move(other));  // leaves with what this held, also when other is this
    std::swap(device_, taken.device_);
    std::swap(data_, taken.data_);
    std::swap(bytes_, taken.bytes_);
    std::swap(category_, taken.category_);
    return *this;
}

PinnedBuffer::PinnedBuffer(Device& device, size_t bytes, const std::string& what) : device_(&device), bytes_(bytes) {
    if (bytes > 0) data_ = backend::allocate_pinned(device, bytes, what);
}

PinnedBuffer::~PinnedBuffer() {
    if (data_ != nullptr) backend::free_pinned(*device_, data_, bytes_);
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
    PinnedBuffer taken(std::move(other));
    std::swap(device_, taken.device_);
    std::swap(data_, taken.data_);
    std::swap(bytes_, taken.bytes_);
    return *this;
}

// ----------------------------------------------------------------------------------------------------------------
// Copies

void copy_async(void* dst, const void* src, size_t bytes, CopyKind kind, Stream& stream) {
    if (bytes == 0) return;
    Device::State& device = stream.device().state();
    if (kind == CopyKind::host_to_device) device.host_to_device_bytes.fetch_add(bytes, std::memory_order_relaxed);
    if (kind == CopyKind::device_to_host) device.device_to_host_bytes.fetch_add(bytes, std::memory_order_relaxed);
    backend::copy(dst, src, bytes, kind, stream);
}

void fill_async(void* dst, int byte_value, size_t bytes, Stream& stream) {
    if (bytes > 0) backend::fill(dst, byte_value, bytes, stream);
}

}  // namespace slab
