// The runtime on the CPU: a Stream is a worker thread with a first-in-first-out queue, device memory is ordinary
// memory.
//
// No lock and no accident orders two streams: see runtime_cpu_queue.h, through which all of it goes.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/runtime.h"
#include "kernels/runtime/runtime_cpu_queue.h"

namespace slab {

using namespace cpu;

namespace {

constexpr size_t kAlignmentBytes = 256;

double milliseconds(Clock::duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
}

std::byte* allocate(size_t bytes, const std::string& what, const char* kind) {
    if (bytes == 0) return nullptr;
    const size_t rounded_bytes =
        bytes > SIZE_MAX - kAlignmentBytes ? 0 : (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    void* memory = rounded_bytes == 0 ? nullptr : std::aligned_alloc(kAlignmentBytes, rounded_bytes);
    if (memory == nullptr) {
        throw std::runtime_error("out of host memory: '" + what + "' (" + kind + ") needs " + std::to_string(bytes) +
                                 " bytes, which the system refused. Hint: free memory, or lift the limit (ulimit -v)");
    }
    return static_cast<std::byte*>(memory);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------------
// Device

struct Device::State {
    explicit State(const DeviceOptions& options)
        : memory(options.budget_bytes), pool(options.threads), pinned(options.pinned_limit_bytes) {}

    MemoryAccount memory;
    ThreadPool pool;
    PinnedAccount pinned;
    std::atomic<uint64_t> host_to_device_bytes{0}, device_to_host_bytes{0};
    std::mutex streams_mutex;  // start-up and tests only
    std::vector<Stream::State*> streams;
};

int device_count() {
    return 1;
}

Device::Device(const DeviceOptions& options) {
    if (options.index != 0) {
        throw std::runtime_error("device " + std::to_string(options.index) +
                                 " given, but this build runs on the CPU, which is device 0");
    }
    state_ = std::make_unique<State>(options);
}

Device::~Device() {
    assert(state_->streams.empty() && "a stream outlives its device");
}

MemoryAccount& Device::memory() {
    return state_->memory;
}
ThreadPool& Device::pool() {
    return state_->pool;
}

std::string Device::name() const {
    const int threads = state_->pool.size();
    return "CPU, " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

size_t Device::host_pinned_bytes() const {
    return state_->pinned.used_bytes();
}
size_t Device::available_bytes() const {
    return 0;
}
int Device::numa_node() const {
    return -1;
}
MeasuredMemory Device::measured_memory() const {
    return {state_->memory.used_bytes(), true};
}

Traffic Device::traffic() const {
    return {state_->host_to_device_bytes.load(std::memory_order_relaxed),
            state_->device_to_host_bytes.load(std::memory_order_relaxed)};
}

// ----------------------------------------------------------------------------------------------------------------
// Stream

struct Stream::State {
    State(Device& on_device, std::string its_name, size_t workspace_bytes)
        : device(on_device),
          name(std::move(its_name)),
          workspace(on_device, workspace_bytes, MemoryCategory::workspace, "workspace of stream " + name) {
        try {
            worker = std::thread([this] { run(); });
        } catch (const std::system_error& error) {
            throw std::runtime_error("the thread of stream " + name + " could not be started: " +
                                     error.code().message() + ". Hint: lift the limit (ulimit -u, -v, -d)");
        }
        pthread_setname_np(worker.native_handle(), name.substr(0, 15).c_str());  // the kernel's limit
        const std::lock_guard lock(device.state().streams_mutex);
        device.state().streams.push_back(this);
    }

    ~State() {
        {
            const std::lock_guard lock(device.state().streams_mutex);
            std::erase(device.state().streams, this);
        }
        queue.push(Item{});
        worker.join();
        if (failure && !failure->reported.load(std::memory_order_relaxed)) {
            std::fprintf(stderr, "warning: %s (nobody synchronised with the stream after it)\n", failure->text.c_str());
        }
    }

    void run() {
        for (;;) {
            Item item = queue.pop();
            switch (item.kind) {
                case Item::Kind::run:
                    execute(item);
                    break;
                // Honoured after an error too: whoever synchronises with this stream may then free what the other one
                // uses.
                case Item::Kind::wait:
                    item.progress->wait_for(item.version);
                    if (!failure) failure = item.progress->announced();
                    break;
                case Item::Kind::signal:
                    item.progress->stamp = Clock::now();
                    item.progress->announce(failure);
                    item.progress->signal(item.version);
                    break;
                case Item::Kind::stop:
                    return;
            }
        }
    }

    void execute(Item& item) {
        if (failure) return;
        const Clock::time_point begin = profiling ? Clock::now() : Clock::time_point{};
        try {
            item.work(device.pool());
        } catch (const std::exception& e) {
            failure = std::make_shared<Failure>("stream '" + name + "', operation '" + item.op + "': " + e.what());
        } catch (...) {
            failure =
                std::make_shared<Failure>("stream '" + name + "', operation '" + item.op + "': unknown exception");
        }
        if (profiling) profile_ms[item.op] += milliseconds(Clock::now() - begin);
    }

    void push_work(const char* op, std::function<void(ThreadPool&)> work) {
        queue.push({Item::Kind::run, op, std::move(work), {}, 0});
    }

    void synchronize() {
        ProgressRef drained = ProgressRef::make();
        queue.push({Item::Kind::signal, {}, {}, drained, 1});
        drained->wait_for(1);
        if (const auto failed = drained->announced()) report(*failed);
    }

    Device& device;
    const std::string name;
    DeviceBuffer workspace;  // charged as on CUDA, so that one plan holds for both; CPU kernels do not use it
    Queue queue;
    // The worker's; others look only after a synchronize.
    bool profiling = false;
    std::map<std::string, double> profile_ms;
    std::shared_ptr<Failure> failure;
    std::thread worker;
};

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

void Stream::host_function(const char* op, std::function<void()> fn) {
    state_->push_work(op, [fn = std::move(fn)](ThreadPool&) { fn(); });
}

void Stream::enqueue(const char* op, std::function<void(ThreadPool&)> fn) {
    state_->push_work(op, std::move(fn));
}

void Stream::set_profiling(bool on) {
    synchronize();
    state_->profiling = on;
    if (on) state_->profile_ms.clear();
}

std::map<std::string, double> Stream::profile_ms() {
    synchronize();
    return state_->profile_ms;
}

void Device::synchronize() {
    const std::lock_guard lock(state_->streams_mutex);
    for (Stream::State* stream : state_->streams) stream->synchronize();
}

// -----------------------------------------------------------------------------------------------------------------
// Event

struct Event::State {
    bool timed = false;
    ProgressRef progress;                   // of the latest record's stream
    const Stream::State* stream = nullptr;  // whose it is
    uint32_t version = 0;                   // of the latest record
};

Event::Event(Device&, bool timed) : state_(std::make_unique<State>()) {
    state_->timed = timed;
}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record(Stream& stream) {
    // Versions arrive in order only within one stream, so a record by another stream starts a new count.
    if (state_->stream != &stream.state()) {
        state_->progress = ProgressRef::make();
        state_->stream = &stream.state();
        state_->version = 0;
    }
    stream.state().queue.push({Item::Kind::signal, {}, {}, state_->progress, ++state_->version});
}

bool Event::recorded() const {
    return static_cast<bool>(state_->progress);
}

bool Event::complete() const {
    return !recorded() || state_->progress->has_reached(state_->version);
}

void Event::synchronize() const {
    if (!recorded()) return;
    state_->progress->wait_for(state_->version);
    if (const auto failed = state_->progress->announced()) report(*failed);
}

void Stream::wait(const Event& event) {
    if (!event.recorded()) throw std::logic_error("stream '" + name() + "' waits for an event that was never recorded");
    const Event::State& e = event.state();
    if (e.stream == state_.get()) return;  // its own order already says so
    state_->queue.push({Item::Kind::wait, {}, {}, e.progress, e.version});
}

float elapsed_ms(const Event& start, const Event& end) {
    for (const Event* event : {&start, &end}) {
        if (!event->state().timed) throw std::logic_error("elapsed_ms: an event was made without timing");
        if (!event->recorded() || !event->complete()) {
            throw std::logic_error("elapsed_ms: an event is not recorded or not complete");
        }
    }
    return static_cast<float>(milliseconds(end.state().progress->stamp - start.state().progress->stamp));
}

// ---------------------------------------------------------------------------------------------------------------
// Buffers

DeviceBuffer::DeviceBuffer(Device& device, size_t bytes, MemoryCategory category, const std::string& what)
    : device_(&device), bytes_(bytes), category_(category) {
    device.memory().charge(category, bytes, what);
    try {
        data_ = allocate(bytes, what, name_of(category));
    } catch (...) {
        device.memory().release(category, bytes);
        throw;
    }
    // All ones is NaN in float, double and bf16: whoever reads memory that nobody wrote sees it in the results.
    if (data_ != nullptr) std::memset(data_, 0xFF, bytes);
}

DeviceBuffer::~DeviceBuffer() {
    if (device_ == nullptr) return;
    std::free(data_);
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

void lock_pages(Device& device, std::byte*, size_t bytes, const std::string& what) {
    device.state().pinned.charge(bytes, what);
}

void unlock_pages(Device& device, std::byte*, size_t bytes) {
    device.state().pinned.release(bytes);
}

PinnedBuffer::PinnedBuffer(Device& device, size_t bytes, const std::string& what)
    : data_(allocate(bytes, what, "host buffer")), bytes_(bytes) {
    try {
        lock_pages(device, data_, bytes, what);
    } catch (...) {
        std::free(data_);
        throw;
    }
    device_ = &device;
}

PinnedBuffer::~PinnedBuffer() {
    if (device_ == nullptr) return;
    unlock_pages(*device_, data_, bytes_);
    std::free(data_);
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
    stream.state().push_work("copy", [dst, src, bytes](ThreadPool&) { std::memcpy(dst, src, bytes); });
}

void fill_async(void* dst, int byte_value, size_t bytes, Stream& stream) {
    if (bytes == 0) return;
    stream.state().push_work("fill", [dst, byte_value, bytes](ThreadPool&) { std::memset(dst, byte_value, bytes); });
}

void delay_async(int microseconds, Stream& stream) {
    stream.state().push_work(
        "delay", [microseconds](ThreadPool&) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
}

}  // namespace slab
