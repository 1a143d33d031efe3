// How streams of the CPU backend pass work and progress between threads: a queue that any host thread fills and one
// worker empties, and counters that events read. For runtime_cpu.cpp alone.
//
// ThreadSanitizer must be able to find a missing wait between two streams, so nothing here may order two threads by
// accident. Hence everything is one-way. The host publishes with release and the worker reads with acquire. The worker
// reports progress with release and whoever waits for it reads with acquire. Sleeping goes through the futex system
// call: mutexes, condition variables and std::atomic::wait would also order the waiter before the waker.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/runtime/device_error.h"
#include "kernels/runtime/thread_pool.h"

namespace slab::cpu {

using Clock = std::chrono::steady_clock;

// Sleeps while *word == value, or returns at once; may return for no reason.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

// The first error of a stream. It stays until the stream ends; `reported` keeps the destructor from printing it again.
struct Failure {
    explicit Failure(std::string what) : text(std::move(what)) {}
    std::string text;
    std::atomic<bool> reported{false};
};

[[noreturn]] inline void report(Failure& failure) {
    failure.reported.store(true, std::memory_order_relaxed);
    throw DeviceError(failure.text);
}

// How far the records of one event by one stream have come: record n is reached when reached - n >= 0 (modulo 2^32).
struct Progress {
    std::atomic<uint32_t> references{1};
    std::atomic<uint32_t> reached{0};
    // Written before `reached`, read after it.
    Clock::time_point stamp{};
    // The recording stream's failure, once it has one. Written once and then announced: a stream that waits may look
    // while the recording one goes on to its next record.
    std::shared_ptr<Failure> failure;
    std::atomic<bool> failed{false};

    void announce(const std::shared_ptr<Failure>& of_stream) {
        if (!of_stream || failed.load(std::memory_order_relaxed)) return;
        failure = of_stream;
        failed.store(true, std::memory_order_release);
    }
    std::shared_ptr<Failure> announced() const {
        return failed.load(std::memory_order_acquire) ? failure : std::shared_ptr<Failure>();
    }

    bool has_reached(uint32_t version) const {
        return static_cast<int32_t>(reached.load(std::memory_order_acquire) - version) >= 0;
    }

    void wait_for(uint32_t version) const {
        for (;;) {
            const uint32_t now = reached.load(std::memory_order_acquire);
            if (static_cast<int32_t>(now - version) >= 0) return;
            futex_wait(reached, now);
        }
    }

    void signal(uint32_t version) {
        reached.store(version, std::memory_order_release);
        futex_wake_all(reached);
    }
};

// Counted by hand: a std::shared_ptr's copies acquire what other owners released. That would order a stream after
// whatever another stream did before it let go of the same event. Here only the last owner acquires.
class ProgressRef {
  public:
    ProgressRef() = default;
    static ProgressRef make() {
        ProgressRef ref;
        ref.progress_ = new Progress;
        return ref;
    }
    ProgressRef(const ProgressRef& other) : progress_(other.progress_) {
        if (progress_ != nullptr) progress_->references.fetch_add(1, std::memory_order_relaxed);
    }
    ProgressRef(ProgressRef&& other) noexcept : progress_(std::exchange(other.progress_, nullptr)) {}
    ProgressRef& operator=(ProgressRef other) noexcept {
        std::swap(progress_, other.progress_);
        return *this;
    }
    ~ProgressRef() {
        if (progress_ == nullptr || progress_->references.fetch_sub(1, std::memory_order_release) != 1) return;
        (void)progress_->references.load(std::memory_order_acquire);
        delete progress_;
    }
    Progress* operator->() const { return progress_; }
    explicit operator bool() const { return progress_ != nullptr; }

  private:
    Progress* progress_ = nullptr;
};

struct Item {
    enum class Kind { run, wait, signal, stop } kind = Kind::stop;
    std::string op;                         // run
    std::function<void(ThreadPool&)> work;  // run
    ProgressRef progress;                   // wait, signal
    uint32_t version = 0;                   // wait, signal
};

// Any host thread pushes, the worker alone pops. `first` is the item popped last: it owns the link to the next one.
class Queue {
  public:
    Queue() : first_(new Node), last_(first_) {}
    ~Queue() {
        while (first_ != nullptr) delete std::exchange(first_, first_->next.load(std::memory_order_acquire));
    }
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    void push(Item item) {
        Node* node = new Node;
        node->item = std::move(item);
        {
            const std::lock_guard lock(producers_);  // never taken by the worker
            last_->next.store(node, std::memory_order_release);
            last_ = node;
        }
        // Release and no acquire: learning that the worker sleeps must not order the host after what the worker did.
        if (asleep_.exchange(0, std::memory_order_release) == 1) futex_wake_all(asleep_);
    }

    // Blocks until there is one.
    Item pop() {
        Node* node = first_->next.load(std::memory_order_acquire);
        while (node == nullptr) {
            (void)asleep_.exchange(1, std::memory_order_acquire);
            node = first_->next.load(std::memory_order_acquire);
            if (node == nullptr) {
                futex_wait(asleep_, 1);
                node = first_->next.load(std::memory_order_acquire);
            }
        }
        // An exchange: a plain store would end the release sequence of the latest push(). The next exchange(1) above
        // could then miss that push's item, and the worker sleep with work in its queue.
        (void)asleep_.exchange(0, std::memory_order_relaxed);
        delete std::exchange(first_, node);
        return std::move(node->item);
    }

  private:
    struct Node {
        std::atomic<Node*> next{nullptr};
        Item item;
    };
    Node* first_;  // worker
    Node* last_;   // producers
    std::mutex producers_;
    std::atomic<uint32_t> asleep_{0};
};

}  // namespace slab::cpu
