// A limit on the memory that the process may take from now on. An allocation out of proportion fails with
// std::bad_alloc. Sanitizers reserve address space of their own. Under them the largest allocation is noted instead,
// and kept() tells whether it was within the limit.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <fstream>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// From the sanitizers' allocator_interface.h, which not every compiler brings.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));
#endif

namespace slab::test {

class LimitedMemory {
  public:
    explicit LimitedMemory(size_t more_bytes) : more_bytes_(more_bytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        static const int installed = __sanitizer_install_malloc_and_free_hooks(note, [](const volatile void*) {});
        (void)installed;
        largest() = 0;
#else
        getrlimit(RLIMIT_AS, &before_);
        size_t pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        rlimit limit = before_;
        limit.rlim_cur = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
        if (pages != 0) setrlimit(RLIMIT_AS, &limit);
#endif
    }
    ~LimitedMemory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        setrlimit(RLIMIT_AS, &before_);
#endif
    }
    LimitedMemory(const LimitedMemory&) = delete;
    LimitedMemory& operator=(const LimitedMemory&) = delete;

    // No allocation since then was larger than the limit.
    bool kept() const {
        return largest() <= more_bytes_;
    }

  private:
    static std::atomic<size_t>& largest() {
        static std::atomic<size_t> bytes = 0;
        return bytes;
    }
    static void note(const volatile void*, size_t bytes) {
        size_t so_far = largest();
        while (bytes > so_far && !largest().compare_exchange_weak(so_far, bytes)) {
        }
    }

    size_t more_bytes_;
    rlimit before_{};
};

}  // namespace slab::test
