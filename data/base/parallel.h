// Work in numbered pieces, shared among threads that live as long as the call.
//
// Invariant: when several pieces fail, the error of the lowest one is thrown, so errors do not depend on timing.
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

// Number of threads that the machine runs at once; 1 when it is unknown.
inline size_t usable_threads() {
    return std::max(1u, std::thread::hardware_concurrency());
}

// Calls work(i) once for each i = 0 .. pieces-1, on up to `threads` threads, the calling one included.
template <typename Work>
void for_each_piece(size_t pieces, size_t threads, const Work& work) {
    std::atomic<size_t> next = 0;
    std::atomic<bool> failed = false;
    std::exception_ptr error;
    size_t error_piece = pieces;
    std::mutex mutex;
    // Pieces are taken in order: when one fails, all before it have been taken and will be finished.
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
        } catch (const std::system_error&) {  // no more threads: the existing ones do the work
        }
        run();
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace slab::data
