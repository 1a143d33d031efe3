// The runtime on the CPU: a Stream is a worker thread with a first-in-first-out queue, device memory is ordinary
// memory.
//
// No lock and no accident orders two streams: all of it goes through runtime_cpu_queue.h.
#include "kernels/runtime/runtime_cpu.h"

#include <pthread.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace slab {

using namespace cpu;

namespace {

constexpr size_t kAlignmentBytes = 256;

double milliseconds(Clock::duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
}

std::byte* aligned_memory(size_t bytes, const std::string& what, const char* kind) {
    const size_t rounded_bytes =
        bytes > SIZE_MAX - kAlignmentBytes ? 0 : (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    void* memory = rounded_bytes == 0 ? nullptr : std::aligned_alloc(kAlignmentBytes, rounded_bytes);
    if (memory == nullptr)
        throw DeviceError("out of host memory: '" + what + "' (" + kind + ") needs " + std::to_string(bytes) +
                          " bytes, which the system refused. Hint: free memory, or lift the limit (ulimit -v)");
    return static_cast<std::byte*>(memory);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------------
// Device

int device_count() {
    return 1;
}

Device::State::State(const DeviceOptions& options) : DeviceState(options) {
    if (options.index != 0)
        throw std::invalid_argument("device " + std::to_string(options.index) +
                                    " given, but this build runs on the CPU, which is device 0");
    memory = std::make_unique<MemoryAccount>(options.budget_bytes / static_cast<size_t>(options.sharing));
    name = "CPU, " + std::to_string(pool.size()) + (pool.size() == 1 ? " thread" : " threads");
}

MeasuredMemory Device::measured_memory() const {
    return {state_->memory->used_bytes(), true};
}

void reach_peer(Device&, Device&) {}

// ----------------------------------------------------------------------------------------------------------------
// Stream

Stream::State::State(Device& on_device, std::string its_name, size_t workspace_bytes)
    : device(on_device),
      name(std::move(its_name)),
      workspace(on_device, workspace_bytes, MemoryCategory::workspace, "workspace of stream " + name) {
    try {
        worker_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
        throw DeviceError("the thread of stream " + name + " could not be started: " + error.code().message() +
                          ". Hint: lift the limit (ulimit -u, -v, -d)");
    }
    pthread_setname_np(worker_.native_handle(), name.substr(0, 15).c_str());  // the kernel's limit
    device.state().add(this);
}

Stream::State::~State() {
    device.state().remove(this);
    queue.push(Item{});
    worker_.join();
    if (failure && !failure->reported.load(std::memory_order_relaxed))
        std::fprintf(stderr, "warning: %s (nobody synchronised with the stream after it)\n", failure->text.c_str());
}

void Stream::State::run() {
    for (;;) {
        Item item = queue.pop();
        switch (item.kind) {
            case Item::Kind::run:
                execute(item);
                break;
            // Honoured after an error too: whoever synchronises with this stream may then free the other one's memory.
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

void Stream::State::execute(Item& item) {
    if (failure) return;
    const Clock::time_point begin = profiling ? Clock::now() : Clock::time_point{};
    try {
        item.work(device.pool());
    } catch (const std::exception& e) {
        failure = std::make_shared<Failure>("stream '" + name + "', operation '" + item.op + "': " + e.what());
    } catch (...) {
        failure = std::make_shared<Failure>("stream '" + name + "', operation '" + item.op + "': unknown exception");
    }
    if (profiling) profile_ms[item.op] += milliseconds(Clock::now() - begin);
}

void Stream::State::push_work(const char* op, std::function<void(ThreadPool&)> work) {
    queue.push({Item::Kind::run, op, std::move(work), {}, 0});
}

void Stream::State::synchronize() {
    ProgressRef drained = ProgressRef::make();
    queue.push({Item::Kind::signal, {}, {}, drained, 1});
    drained->wait_for(1);
    if (const auto failed = drained->announced()) report(*failed);
}

void Stream::host_function(const char* op, std::function<void()> fn) {
    state_->push_work(op, [fn = std::move(fn)](ThreadPool&) { fn(); });
}

void Stream::enqueue(const char* op, std::function<void(ThreadPool&)> fn) {
    state_->push_work(op, std::move(fn));
}

void Stream::wait(const Event& event) {
    if (!event.recorded()) throw std::logic_error("stream '" + name() + "' waits for an event that was never recorded");
    const Event::State& e = event.state();
    if (e.stream == state_.get()) return;  // its own order already says so
    state_->queue.push({Item::Kind::wait, {}, {}, e.progress, e.version});
}

// -----------------------------------------------------------------------------------------------------------------
// Event

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

// ---------------------------------------------------------------------------------------------------------------
// Memory and copies

void lock_pages(Device& device, std::byte*, size_t bytes, const std::string& what) {
    device.state().pinned.charge(bytes, what);
}

void unlock_pages(Device& device, std::byte*, size_t bytes) {
    device.state().pinned.release(bytes);
}

namespace backend {

std::byte* allocate(Device&, size_t bytes, MemoryCategory category, const std::string& what) {
    std::byte* data = aligned_memory(bytes, what, name_of(category));
    // All ones is NaN in float, double and bf16: whoever reads memory that nobody wrote sees it in the results.
    std::memset(data, 0xFF, bytes);
    return data;
}

void free(std::byte* data) noexcept {
    std::free(data);
}

std::byte* allocate_pinned(Device& device, size_t bytes, const std::string& what) {
    std::byte* data = aligned_memory(bytes, what, "host buffer");
    try {
        lock_pages(device, data, bytes, what);
    } catch (...) {
        std::free(data);
        throw;
    }
    return data;
}

void free_pinned(Device& device, std::byte* data, size_t bytes) noexcept {
    unlock_pages(device, data, bytes);
    std::free(data);
}

void copy(void* dst, const void* src, size_t bytes, CopyKind, Stream& stream) {
    stream.state().push_work("copy", [dst, src, bytes](ThreadPool&) { std::memcpy(dst, src, bytes); });
}

void fill(void* dst, int byte_value, size_t bytes, Stream& stream) {
    stream.state().push_work("fill", [dst, byte_value, bytes](ThreadPool&) { std::memset(dst, byte_value, bytes); });
}

float elapsed_ms(const Event::State& start, const Event::State& end) {
    return static_cast<float>(milliseconds(end.progress->stamp - start.progress->stamp));
}

}  // namespace backend

void delay_async(int microseconds, Stream& stream) {
    stream.state().push_work(
        "delay", [microseconds](ThreadPool&) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
}

}  // namespace slab
