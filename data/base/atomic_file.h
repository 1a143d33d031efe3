// Files and directories that appear whole or not at all.
//
// A run may be killed at any moment, also while it saves. So everything is written under a temporary name in the
// directory where it shall end, brought to the disk with fsync, and only then renamed; rename is the one step that the
// file system promises to do whole. Until commit() returns, what stood under the final name is untouched.
//
// Temporaries are called `.tmp-<pid>-<n>-<name>`. They carry a lock (flock) for as long as their writer lives, by which
// remove_stale_temporaries() tells the leftovers of killed runs from the work of living ones.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>
#include <utility>

namespace slab::data {

// One file. Not committed, it leaves nothing behind. All errors are std::runtime_error naming the file, the bytes
// wanted and what the system said; after one, the file can only be thrown away.
class AtomicFile {
  public:
    // The directory must exist. An existing `path` must be a regular file; a symbolic link is followed.
    explicit AtomicFile(const std::filesystem::path& path);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write(const void* bytes, size_t count_bytes);  // appends
    // Overwrites bytes already written: for a header whose counts are known only at the end.
    void overwrite(size_t offset_bytes, const void* bytes, size_t count_bytes);
    size_t size_bytes() const { return size_bytes_; }
    // Brings everything to the disk, so that commit() cannot run out of space any more. For files that belong
    // together: prepare all of them, then commit all of them. commit() does it when it was not called.
    void prepare();
    void commit();

  private:
    void write_at(size_t offset_bytes, const void* bytes, size_t count_bytes);
    void require_writable() const;

    enum class State { writing, prepared, committed, failed };
    std::filesystem::path final_path_, temporary_path_;
    int fd_ = -1;
    size_t size_bytes_ = 0;
    State state_ = State::writing;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);
// Copies the content of the regular file `from`, through a small buffer.
void copy_file_atomically(const std::filesystem::path& from, const std::filesystem::path& to);

// What becomes of a directory that stands under the final name of a finished one; they are never merged.
// keep: only an empty one is replaced. Anything else stays, the finished directory is left under a name beside it, and
//     the error names both.
// replace: for names that are the caller's own. It is renamed away, the new one renamed in, and the old one removed. A
//     run killed between the two renames leaves both whole; remove_stale_temporaries() then puts the old one back.
enum class Existing { keep, replace };

// A directory and everything in it. The caller fills staging() by any means, then commits.
class AtomicDirectory {
  public:
    explicit AtomicDirectory(const std::filesystem::path& final_path);  // its parent must exist
    ~AtomicDirectory();
    AtomicDirectory(const AtomicDirectory&) = delete;
    AtomicDirectory& operator=(const AtomicDirectory&) = delete;

    const std::filesystem::path& staging() const { return staging_path_; }
    void commit(Existing existing);

  private:
    [[noreturn]] void leave_beside(int error);

    std::filesystem::path final_path_, staging_path_;
    int lock_fd_ = -1;
    bool committed_ = false;
};

// One process at a time writes into a directory: held for as long as the object lives, let go by the system when the
// process ends in any way. Leaves no file behind.
class DirectoryLock {
  public:
    DirectoryLock() = default;
    // Throws std::runtime_error when another process, or another object here, holds it.
    explicit DirectoryLock(const std::filesystem::path& directory);
    ~DirectoryLock();
    DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    DirectoryLock& operator=(DirectoryLock&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }

  private:
    int fd_ = -1;
};

// Deletes a directory and everything in it. It is renamed to a temporary's name first, so that a run killed in the
// middle leaves no half-empty directory under a name that means something.
void remove_directory_atomically(const std::filesystem::path& directory);

// Deletes what killed runs left in `directory` (not below it) and returns how many leftovers there were. Work in
// progress, of this process or another, is left alone. A missing directory has no leftovers.
size_t remove_stale_temporaries(const std::filesystem::path& directory);

}  // namespace slab::data
