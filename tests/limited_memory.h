// A limit on what the process may have beyond now, so that a test sees an allocation that is out of proportion: it
// fails, as std::bad_alloc. Not under sanitizers, which reserve address space of their own; their option
// max_allocation_size_mb does it there.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace slab::test {

class LimitedMemory {
  public:
    explicit LimitedMemory(size_t more_bytes) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        getrlimit(RLIMIT_AS, &before_);
        size_t pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        rlimit limit = before_;
        limit.rlim_cur = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
        if (pages != 0) setrlimit(RLIMIT_AS, &limit);
#else
        (void)more_bytes;
#endif
    }
    ~LimitedMemory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        setrlimit(RLIMIT_AS, &before_);
#endif
    }
    LimitedMemory(const LimitedMemory&) = delete;
    LimitedMemory& operator=(const LimitedMemory&) = delete;

  private:
    rlimit before_{};
};

}  // namespace slab::test
