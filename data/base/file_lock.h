// One process at a time writes into a file: held for as long as the object lives, let go by the system when the process
// ends in any way. What one directory holds of one run, DirectoryLock (atomic_file.h) is for.
#pragma once

#include <filesystem>
#include <utility>

namespace slab::data {

class FileLock {
  public:
    FileLock() = default;
    // Makes the file, empty, when there is none. Throws std::runtime_error when it cannot be opened for writing, or
    // when another process, or another object here, holds it; `what` says in that message what is being written ("a
    // log"). On a file system without locks (some network ones) every one is taken.
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
