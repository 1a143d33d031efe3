// Work in numbered pieces, shared among threads that live as long as the call.
//
// Invariant: of several pieces that fail, the error of the first one is thrown, so that errors do not depend on timing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace slab::data {

// Threads that this machine runs at once; 1 where it does not say.
inline size_t usable_threads() {
    return std::max(1u, std::thread::hardware_concurrency());
}

// work(i) for i = 0 .. pieces-1, each once, on up to `threads` threads, the calling one included.
template <typename Work>
void for_each_piece(size_t pieces, size_t threads, const Work& work) {
    std::atomic<size_t> next = 0;
    std::atomic<bool> failed = false;
    std::exception_ptr error;
    size_t error_piece = pieces;
    std::mutex mutex;
    // Pieces are taken in their order: all before the first that fails have been taken by then, and are finished.
    const auto run = [&] {
        for (size_t i; !failed && (i = next.fetch_add(1)) < pieces;) {
            try {
                work(i);
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (i < error_piece) error = std::current_exception();
                error_piece = std::min(error_piece, i);
                failed = true;
            }
        }
    };
    {
        std::vector<std::jthread> others;
        try {
            for (size_t i = 1; i < std::min(threads, pieces); ++i) others.emplace_back(run);
        } catch (const std::system_error&) {  // the system gives no more threads: those there do the work
        }
        run();
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace slab::data
