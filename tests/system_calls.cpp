// The test program's own fsync, rename and flock: the linker takes them before the C library's.
#include "tests/system_calls.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace slab::test {
namespace {

namespace fs = std::filesystem;

struct Watch {
    std::mutex mutex;
    bool on = false;
    std::vector<SystemCall> calls;
    std::function<void()> before_flock;
};
// Functions of the C library take no context. Never destroyed: files are renamed by objects that outlive it.
Watch& watch() {
    static Watch* const all = new Watch;
    return *all;
}

void note(SystemCall call) {
    const std::lock_guard lock(watch().mutex);
    if (watch().on) watch().calls.push_back(std::move(call));
}

std::string path_of(int fd) {
    char path[PATH_MAX];
    const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
    return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

}  // namespace

SystemCalls::SystemCalls() {
    const std::lock_guard lock(watch().mutex);
    if (watch().on) throw std::logic_error("system calls are watched already");
    watch().on = true;
    watch().calls.clear();
}

SystemCalls::~SystemCalls() {
    const std::lock_guard lock(watch().mutex);
    watch().on = false;
    watch().before_flock = nullptr;
}

std::vector<SystemCall> SystemCalls::made() const {
    const std::lock_guard lock(watch().mutex);
    return watch().calls;
}

void SystemCalls::before_flock(std::function<void()> act) {
    const std::lock_guard lock(watch().mutex);
    watch().before_flock = std::move(act);
}

bool synced(const std::vector<SystemCall>& calls, size_t before, const std::string& path, size_t size_bytes) {
    return std::any_of(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(before), [&](const SystemCall& call) {
        return call.kind == SystemCall::Kind::fsync && call.path == path && call.size_bytes == size_bytes;
    });
}

size_t rename_to(const std::vector<SystemCall>& calls, const std::string& new_path) {
    const auto found = std::find_if(calls.begin(), calls.end(), [&](const SystemCall& call) {
        return call.kind == SystemCall::Kind::rename && call.new_path == new_path;
    });
    return static_cast<size_t>(found - calls.begin());
}

std::string not_durable(const std::vector<SystemCall>& calls, const std::string& path) {
    const size_t renamed = rename_to(calls, path);
    if (renamed == calls.size()) return path + " was not renamed to its name";
    const std::string before = calls[renamed].path;
    std::vector<fs::path> all = {path};
    if (fs::is_directory(path))
        for (const auto& entry : fs::recursive_directory_iterator(path))
            if (!entry.is_symlink()) all.push_back(entry.path());
    for (const fs::path& one : all) {
        struct stat status {};
        if (stat(one.c_str(), &status) != 0) return one.string() + " cannot be looked at";
        const std::string was = before + one.string().substr(path.size());
        if (!synced(calls, renamed, was, static_cast<size_t>(status.st_size))) return one.string();
    }
    const std::string parent = fs::path(path).parent_path().string();
    const bool name_synced = std::any_of(
        calls.begin() + static_cast<std::ptrdiff_t>(renamed), calls.end(),
        [&](const SystemCall& call) { return call.kind == SystemCall::Kind::fsync && call.path == parent; });
    return name_synced ? "" : "the name in " + parent;
}

}  // namespace slab::test

using slab::test::SystemCall;

extern "C" int fsync(int fd) {
    struct stat status {};
    const size_t size_bytes = fstat(fd, &status) == 0 ? static_cast<size_t>(status.st_size) : 0;
    slab::test::note({SystemCall::Kind::fsync, slab::test::path_of(fd), "", size_bytes});
    return static_cast<int>(syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* old_path, const char* new_path) noexcept {
    slab::test::note({SystemCall::Kind::rename, old_path, new_path, 0});
    return renameat(AT_FDCWD, old_path, AT_FDCWD, new_path);
}

extern "C" int flock(int fd, int operation) noexcept {
    std::function<void()> act;
    {
        const std::lock_guard lock(slab::test::watch().mutex);
        act = std::exchange(slab::test::watch().before_flock, nullptr);
    }
    if (act) act();
    return static_cast<int>(syscall(SYS_flock, fd, operation));
}
