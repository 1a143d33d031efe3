// What the code under test asks of the system: fsync, rename and flock, in their order. The test program defines these
// three itself (system_calls.cpp), so that the product needs no hook for it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace slab::test {

struct SystemCall {
    enum class Kind { fsync, rename } kind;
    std::string path;      // of fsync the file or directory, of rename the old name
    std::string new_path;  // of rename
    size_t size_bytes;     // of fsync, at that moment
};

// While it lives, the calls of this process are noted and then made. One at a time.
class SystemCalls {
  public:
    SystemCalls();
    ~SystemCalls();
    SystemCalls(const SystemCalls&) = delete;
    SystemCalls& operator=(const SystemCalls&) = delete;

    std::vector<SystemCall> made() const;
    // Runs once, in the place of the next flock and before it: what another process may do between open and flock.
    void before_flock(std::function<void()> act);
};

// Whether `path`, with `size_bytes` in it, was brought to the disk in calls[0, before).
bool synced(const std::vector<SystemCall>& calls, size_t before, const std::string& path, size_t size_bytes);
// The place of the first rename to `new_path`; calls.size() when there is none.
size_t rename_to(const std::vector<SystemCall>& calls, const std::string& new_path);
// What of the file or directory now at `path` was not on the disk when it got this name, or when its name was not
// brought there afterwards; "" when all was.
std::string not_durable(const std::vector<SystemCall>& calls, const std::string& path);

}  // namespace slab::test
