// The pool of threads behind every CPU kernel.
//
// A job is opened under the lock. The caller works on it, and whichever helpers join in time. It is closed when its
// tiles are handed out; the caller then waits only for helpers that joined. So a helper that sleeps, or that the system
// runs elsewhere, never holds up a short job. Helpers spin for some microseconds before they sleep, because the kernels
// of a block follow each other closely. Invariant: between open and close `tile` and `tiles` do not change.
#include "kernels/runtime/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/runtime/device_error.h"

namespace slab {

namespace {

constexpr int kSpins = 2000;  // some tens of microseconds

void spin_once() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// True on a thread that is inside a tile of any pool: a nested call could wait for itself.
thread_local bool inside_tile = false;

struct InsideTile {
    InsideTile() { inside_tile = true; }
    ~InsideTile() { inside_tile = false; }
};

}  // namespace

struct ThreadPool::State {
    std::mutex callers;  // one job at a time; two streams that call at once take turns

    std::mutex mutex;
    std::condition_variable opened, left;
    bool open = false, stop = false;  // guarded by mutex
    const std::function<void(size_t)>* tile = nullptr;
    size_t tiles = 0;
    std::exception_ptr error;             // guarded by mutex; the first one of the job
    std::atomic<uint32_t> generation{0};  // counts jobs; changed under the mutex, watched without it
    std::atomic<int> helpers_inside{0};   // joined under the mutex
    alignas(64) std::atomic<size_t> next_tile{0};

    std::vector<std::thread> helpers;

    ~State() {
        {
            const std::lock_guard lock(mutex);
            stop = true;
            generation.fetch_add(1, std::memory_order_relaxed);
        }
        opened.notify_all();
        for (std::thread& helper : helpers) helper.join();
    }

    void run_tiles() {
        const InsideTile inside;
        try {
            for (size_t i; (i = next_tile.fetch_add(1, std::memory_order_relaxed)) < tiles;) (*tile)(i);
        } catch (...) {
            next_tile.store(tiles, std::memory_order_relaxed);  // nobody starts another tile
            const std::lock_guard lock(mutex);
            if (!error) error = std::current_exception();
        }
    }

    void help() {
        uint32_t seen = 0;
        for (;;) {
            for (int spin = 0; spin < kSpins && generation.load(std::memory_order_relaxed) == seen; ++spin) spin_once();
            {
                std::unique_lock lock(mutex);
                opened.wait(lock, [&] { return generation.load(std::memory_order_relaxed) != seen; });
                seen = generation.load(std::memory_order_relaxed);
                if (stop) return;
                if (!open) continue;  // woke too late, the job is done
                helpers_inside.fetch_add(1, std::memory_order_relaxed);
            }
            run_tiles();
            if (helpers_inside.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                const std::lock_guard lock(mutex);  // the caller either sees zero or is already waiting
                left.notify_one();
            }
        }
    }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
    constexpr int kMostThreads = 1024;
    if (threads < 0 || threads > kMostThreads) {
        throw std::invalid_argument("threads: " + std::to_string(threads) + " given, 1 to " +
                                    std::to_string(kMostThreads) + " wanted (0 takes the machine's cores)");
    }
    if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
    if (threads < 1) threads = 1;
    state_->helpers.reserve(static_cast<size_t>(threads - 1));
    try {
        for (int i = 1; i < threads; ++i) state_->helpers.emplace_back([s = state_.get()] { s->help(); });
    } catch (const std::system_error& error) {
        throw DeviceError("only " + std::to_string(state_->helpers.size() + 1) + " of " + std::to_string(threads) +
                          " threads could be started: " + error.code().message() +
                          ". Hint: give a smaller --threads, or lift the limit (ulimit -u, -v, -d)");
    }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const {
    return static_cast<int>(state_->helpers.size()) + 1;
}

void ThreadPool::parallel_for(size_t tiles, const std::function<void(size_t)>& tile) {
    if (inside_tile) throw std::logic_error("ThreadPool::parallel_for called from inside a tile");
    if (tiles == 0) return;
    State& s = *state_;
    if (tiles == 1 || s.helpers.empty()) {
        const InsideTile inside;
        for (size_t i = 0; i < tiles; ++i) tile(i);
        return;
    }
    const std::lock_guard turn(s.callers);
    {
        const std::lock_guard lock(s.mutex);
        s.tile = &tile;
        s.tiles = tiles;
        s.next_tile.store(0, std::memory_order_relaxed);
        s.open = true;
        s.generation.fetch_add(1, std::memory_order_relaxed);
    }
    s.opened.notify_all();
    s.run_tiles();
    std::exception_ptr error;
    {
        std::unique_lock lock(s.mutex);
        s.open = false;
        lock.unlock();
        for (int spin = 0; spin < kSpins && s.helpers_inside.load(std::memory_order_acquire) != 0; ++spin) spin_once();
        lock.lock();
        s.left.wait(lock, [&] { return s.helpers_inside.load(std::memory_order_acquire) == 0; });
        std::swap(error, s.error);
    }
    if (error) std::rethrow_exception(error);
}

void ThreadPool::parallel_ranges(size_t items, size_t items_per_tile,
                                 const std::function<void(size_t, size_t)>& range) {
    if (items_per_tile == 0) throw std::logic_error("ThreadPool::parallel_ranges: items_per_tile is 0");
    const size_t tiles = items / items_per_tile + (items % items_per_tile != 0);
    parallel_for(tiles, [&](size_t i) {
        const size_t begin = i * items_per_tile;
        range(begin, items - begin < items_per_tile ? items : begin + items_per_tile);
    });
}

}  // namespace slab
