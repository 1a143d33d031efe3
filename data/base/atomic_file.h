// Files and directories that appear whole or not at all.
//
// A run may be killed at any moment, also while it saves. So everything is written under a temporary name in the final
// directory, brought to the disk with fsync, and only then renamed. A rename is the one step that a file system does as
// a whole. Until commit() returns, whatever had the final name is untouched.
//
// Temporaries are called `.tmp-<pid>-<n>-<name>`. Each is locked (flock) for as long as its writer lives. By that lock
// remove_stale_temporaries() tells the leftovers of killed runs from the work of running ones.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "data/base/descriptor.h"

namespace slab::data {

// One file. Without a commit nothing remains of it. Errors are IoError with the file, the bytes wanted and the system's
// words. After one, the file can only be thrown away.
class AtomicFile {
  public:
    // The directory must exist. An existing `path` must be a regular file, else UserError. A symbolic link is followed.
    explicit AtomicFile(const std::filesystem::path& path);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write(const void* bytes, size_t count_bytes);  // appends
    // Overwrites bytes already written, such as a header whose counts are known only at the end.
    void overwrite(size_t offset_bytes, const void* bytes, size_t count_bytes);
    size_t size_bytes() const { return size_bytes_; }
    // Brings everything to the disk, so that commit() cannot run out of space any more. Files that belong together are
    // all prepared before the first is committed. commit() prepares a file that was not.
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

// What happens to a directory that already has the final name. Two directories are never merged.
// keep: only an empty one is replaced. Any other stays; the finished directory gets a name beside it, and the error
//     gives both names.
// replace: for names that are the caller's own. The old directory is renamed away, the new one renamed in, the old one
//     removed. A run killed between the renames leaves both whole; remove_stale_temporaries() then puts the old one
//     back.
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

// One process at a time writes into a directory. The lock is held for as long as the object lives; the system releases
// it when the process ends in any way. It leaves no file.
class DirectoryLock {
  public:
    DirectoryLock() = default;
    // Throws UserError when another process or object holds the lock, IoError when the directory cannot be opened.
    explicit DirectoryLock(const std::filesystem::path& directory);

  private:
    Descriptor directory_;
};

// Deletes a directory and everything in it. It is renamed to a temporary name first: a run killed in the middle leaves
// no half-empty directory under its real name.
void remove_directory_atomically(const std::filesystem::path& directory);

// Deletes the leftovers of killed runs in `directory` itself, not below it, and returns their number. Work in progress,
// of this process or another, is left alone. A missing directory has no leftovers.
size_t remove_stale_temporaries(const std::filesystem::path& directory);

}  // namespace slab::data
