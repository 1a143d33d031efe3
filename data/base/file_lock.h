// One process at a time writes into a file. The lock is held for as long as the object lives; the system releases it
// when the process ends in any way. A whole directory has DirectoryLock (atomic_file.h).
#pragma once

#include <filesystem>
#include <utility>

namespace slab::data {

class FileLock {
  public:
    FileLock() = default;
    // Makes an empty file when there is none. Throws IoError when the file cannot be opened for writing, UserError when
    // another process or object holds it. `what` is what is written there, for that message: "a log". File systems
    // without locks (some network ones) grant every lock.
    FileLock(const std::filesystem::path& file, const char* what);
    ~FileLock();
    FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    FileLock& operator=(FileLock&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }

  private:
    int fd_ = -1;
};

}  // namespace slab::data
