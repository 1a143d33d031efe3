// Write to a temporary name, fsync, rename, fsync the directory.
//
// The lock on a temporary is taken right after its creation. A cleaner that gets there first still holds the lock or
// has unlinked the temporary already. The creator notices both and starts over with the next name, so no order of the
// two loses data. On a file system without flock the cleaner asks whether the process in the name is still alive.
#include "data/base/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "data/base/error.h"
#include "data/base/input_file.h"

namespace slab::data {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kOldMark = ".old-";  // instead of the last '-': a directory that is being replaced

const char* hint_for(int error) {
    switch (error) {
        case ENOSPC:
        case EDQUOT:
        case EFBIG:
            return "free some space there, or write to another place";
        case EACCES:
        case EPERM:
        case EROFS:
            return "choose a place that you may write to";
        case ENOENT:
            return "make the directory first";
        case ENOTDIR:
            return "a part of the path is a file where a directory is wanted";
        default:
            return "look at the disk and the path";
    }
}

[[noreturn]] void fail(int error, const fs::path& path, const std::string& action) {
    throw IoError(
        {.subject = path.string(), .given = "cannot " + action + ": " + system_text(error), .hint = hint_for(error)});
}

template <typename Call>
auto retry_interrupted(Call call) {
    auto result = call();
    while (result < 0 && errno == EINTR) result = call();
    return result;
}

enum class Lock { taken, held_elsewhere, unsupported };

Lock try_lock(int fd) {
    if (retry_interrupted([&] { return flock(fd, LOCK_EX | LOCK_NB); }) == 0) return Lock::taken;
    return errno == EWOULDBLOCK ? Lock::held_elsewhere : Lock::unsupported;
}

// Symbolic links are followed here: renaming over a link would replace the link, not its file.
fs::path resolve(const fs::path& path) {
    fs::path normal = path.lexically_normal();
    if (!normal.has_filename()) normal = normal.parent_path();  // "run/" means "run"
    if (normal.empty() || normal.filename() == "." || normal.filename() == "..")
        throw UserError({.subject = "'" + path.string() + "'",
                         .given = "is not a name that can be written",
                         .hint = "give the name itself"});
    std::error_code error;
    if (fs::is_symlink(normal, error)) normal = fs::weakly_canonical(normal);
    return fs::absolute(normal);
}

// Throws when `path`, given by the user as `given`, exists and is of another kind.
void refuse_other_kind(const fs::path& given, const fs::path& path, fs::file_type kind, const std::string& kind_name) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::exists(status) && status.type() != kind)
        throw UserError({.subject = given.string(),
                         .given = "cannot be written: it exists and is not " + kind_name,
                         .hint = "give another name"});
}

std::string temporary_name(size_t attempt, std::string_view separator, const std::string& name) {
    return std::string(kTemporaryPrefix) + std::to_string(getpid()) + "-" + std::to_string(attempt) +
           std::string(separator) + name;
}

// Makes a locked temporary beside `final_path` and returns its path and descriptor.
std::pair<fs::path, int> make_temporary(const fs::path& final_path, bool directory) {
    const std::string name = final_path.filename().string().substr(0, 128);  // room for the prefix within NAME_MAX
    for (size_t attempt = 0; attempt < 100000; ++attempt) {
        const fs::path path = final_path.parent_path() / temporary_name(attempt, "-", name);
        const int flags = directory ? O_RDONLY | O_DIRECTORY | O_CLOEXEC : O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
        if (directory && mkdir(path.c_str(), 0777) != 0) {
            if (errno == EEXIST) continue;
            fail(errno, final_path, "make a temporary directory beside it");
        }
        const int fd = retry_interrupted([&] { return open(path.c_str(), flags, 0666); });
        if (fd < 0) {
            if (errno == EEXIST || (directory && errno == ENOENT)) continue;
            const int error = errno;
            if (directory) rmdir(path.c_str());
            fail(error, final_path, "make a temporary file beside it");
        }
        struct stat status {};
        if (try_lock(fd) != Lock::held_elsewhere && fstat(fd, &status) == 0 && status.st_nlink > 0) return {path, fd};
        close(fd);  // a cleaner took it between creation and lock
    }
    fail(EEXIST, final_path, "find a free temporary name beside it");
}

void sync_path(const fs::path& path, int flags) {
    const int fd = retry_interrupted([&] { return open(path.c_str(), flags | O_RDONLY | O_CLOEXEC); });
    if (fd < 0) fail(errno, path, "open it for fsync");
    const int result = retry_interrupted([&] { return fsync(fd); });
    const int error = errno;
    close(fd);
    // Some network file systems have no fsync for directories; there the rename alone must do.
    if (result != 0 && !(error == EINVAL && (flags & O_DIRECTORY))) fail(error, path, "bring it to the disk (fsync)");
}

void sync_tree(const fs::path& root) {
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
        if (entry.is_symlink()) continue;
        if (entry.is_directory()) sync_path(entry.path(), O_DIRECTORY);
        if (entry.is_regular_file()) sync_path(entry.path(), 0);
    }
    sync_path(root, O_DIRECTORY);
}

// Renames the directory `final_path` to a temporary name, locked so that no cleaner takes it for a leftover.
// `separator` decides what a cleaner does once the lock is gone: kOldMark puts the directory back, "-" deletes it.
std::pair<fs::path, int> rename_away(const fs::path& final_path, std::string_view separator) {
    const int fd = retry_interrupted([&] { return open(final_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) fail(errno, final_path, "open the directory to be removed");
    try_lock(fd);
    for (size_t attempt = 0; attempt < 100000; ++attempt) {
        const fs::path away =
            final_path.parent_path() / temporary_name(attempt, separator, final_path.filename().string());
        std::error_code ignored;
        if (fs::exists(fs::symlink_status(away, ignored))) continue;
        if (rename(final_path.c_str(), away.c_str()) == 0) return {away, fd};
        break;
    }
    const int error = errno;
    close(fd);
    fail(error, final_path, "rename the old directory away");
}

struct TemporaryName {
    pid_t pid = 0;
    std::string replaced;  // the final name, when this is a directory that was being replaced; else empty
};

// Reads `.tmp-<pid>-<n>-<name>` or `.tmp-<pid>-<n>.old-<name>`; false for any other name.
bool parse_temporary_name(const std::string& name, TemporaryName& parsed) {
    size_t at = kTemporaryPrefix.size();
    if (name.compare(0, at, kTemporaryPrefix) != 0) return false;
    const auto skip_digits = [&] {
        const size_t begin = at;
        while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) ++at;
        return at > begin && at - begin <= 9;
    };
    const size_t pid_begin = at;
    if (!skip_digits()) return false;
    parsed.pid = static_cast<pid_t>(std::stol(name.substr(pid_begin, at - pid_begin)));
    if (at >= name.size() || name[at++] != '-' || !skip_digits()) return false;
    if (name.compare(at, kOldMark.size(), kOldMark) == 0) {
        parsed.replaced = name.substr(at + kOldMark.size());
        return !parsed.replaced.empty();
    }
    parsed.replaced.clear();
    return at + 1 < name.size() && name[at] == '-';
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : final_path_(resolve(path)) {
    refuse_other_kind(path, final_path_, fs::file_type::regular, "a regular file");
    std::tie(temporary_path_, fd_) = make_temporary(final_path_, false);
}

AtomicFile::~AtomicFile() {
    if (state_ != State::committed) unlink(temporary_path_.c_str());
    close(fd_);  // last, as it drops the lock: an unlocked temporary may be cleaned away
}

void AtomicFile::require_writable() const {
    if (state_ != State::writing)
        throw std::logic_error(final_path_.string() + ": written to after commit or an error");
}

void AtomicFile::write_at(size_t offset_bytes, const void* bytes, size_t count_bytes) {
    const char* source = static_cast<const char*>(bytes);
    for (size_t done = 0; done < count_bytes;) {
        const ssize_t step = retry_interrupted(
            [&] { return pwrite(fd_, source + done, count_bytes - done, static_cast<off_t>(offset_bytes + done)); });
        if (step <= 0) {
            const int error = step < 0 ? errno : ENOSPC;  // a write of nothing would loop for ever
            state_ = State::failed;
            fail(error, final_path_,
                 "write " + std::to_string(count_bytes) + " bytes at offset " + std::to_string(offset_bytes) + " (" +
                     std::to_string(done) + " were written)");
        }
        done += static_cast<size_t>(step);
    }
}

void AtomicFile::write(const void* bytes, size_t count_bytes) {
    require_writable();
    write_at(size_bytes_, bytes, count_bytes);
    size_bytes_ += count_bytes;
}

void AtomicFile::overwrite(size_t offset_bytes, const void* bytes, size_t count_bytes) {
    require_writable();
    if (offset_bytes > size_bytes_ || count_bytes > size_bytes_ - offset_bytes)
        throw std::logic_error(final_path_.string() + ": overwrite beyond what was written");
    write_at(offset_bytes, bytes, count_bytes);
}

void AtomicFile::prepare() {
    require_writable();
    if (retry_interrupted([&] { return fsync(fd_); }) != 0) {
        const int error = errno;
        state_ = State::failed;
        fail(error, final_path_, "bring " + std::to_string(size_bytes_) + " bytes to the disk (fsync)");
    }
    state_ = State::prepared;
}

void AtomicFile::commit() {
    if (state_ == State::writing) prepare();
    if (state_ != State::prepared) throw std::logic_error(final_path_.string() + ": committed twice or after an error");
    if (rename(temporary_path_.c_str(), final_path_.c_str()) != 0) {
        const int error = errno;
        state_ = State::failed;
        fail(error, final_path_, "rename the finished file (" + std::to_string(size_bytes_) + " bytes) to it");
    }
    state_ = State::committed;
    sync_path(final_path_.parent_path(), O_DIRECTORY);
}

void write_file_atomically(const fs::path& path, std::string_view content) {
    AtomicFile file(path);
    file.write(content.data(), content.size());
    file.commit();
}

void copy_file_atomically(const fs::path& from, const fs::path& to) {
    const InputFile source(from);
    AtomicFile copy(to);
    std::vector<char> buffer(std::min(source.size_bytes(), size_t{1} << 20));
    for (size_t done = 0; done < source.size_bytes(); done += buffer.size()) {
        const size_t count_bytes = std::min(buffer.size(), source.size_bytes() - done);
        source.read(done, buffer.data(), count_bytes, "content");
        copy.write(buffer.data(), count_bytes);
    }
    copy.commit();
}

AtomicDirectory::AtomicDirectory(const fs::path& final_path) : final_path_(resolve(final_path)) {
    refuse_other_kind(final_path, final_path_, fs::file_type::directory, "a directory");
    std::tie(staging_path_, lock_fd_) = make_temporary(final_path_, true);
}

AtomicDirectory::~AtomicDirectory() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(staging_path_, ignored);
    close(lock_fd_);
}

// The final name is taken. The finished directory, which may be the work of hours, gets another lasting name.
void AtomicDirectory::leave_beside(int error) {
    fs::path beside;
    for (int n = 1; n <= 1000; ++n) {
        beside = final_path_.string() + ".finished-" + std::to_string(n);
        std::error_code ignored;
        if (fs::exists(fs::symlink_status(beside, ignored))) continue;
        if (rename(staging_path_.c_str(), beside.c_str()) == 0) break;
        if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) fail(errno, beside, "rename a directory to it");
        beside.clear();
    }
    if (beside.empty()) fail(EEXIST, final_path_, "find a free name beside it for the finished directory");
    committed_ = true;
    sync_path(final_path_.parent_path(), O_DIRECTORY);
    throw IoError({.subject = final_path_.string(),
                   .given = "cannot rename the finished directory to it: " + system_text(error) +
                            "; what came to be there meanwhile was left as it is, and the finished directory is " +
                            beside.string(),
                   .hint = "rename that to where you want it"});
}

void AtomicDirectory::commit(Existing existing) {
    if (committed_) throw std::logic_error(final_path_.string() + ": committed twice");
    sync_tree(staging_path_);
    if (existing == Existing::keep) {  // rename() itself replaces an empty directory only
        if (rename(staging_path_.c_str(), final_path_.c_str()) != 0) leave_beside(errno);
        committed_ = true;
        sync_path(final_path_.parent_path(), O_DIRECTORY);
        return;
    }
    std::error_code ignored;
    std::pair<fs::path, int> old{{}, -1};
    if (fs::exists(fs::symlink_status(final_path_, ignored))) old = rename_away(final_path_, kOldMark);
    if (rename(staging_path_.c_str(), final_path_.c_str()) != 0) {
        const int error = errno;
        if (old.second >= 0) {
            (void)rename(old.first.c_str(), final_path_.c_str());
            close(old.second);
        }
        fail(error, final_path_, "rename the finished directory to it");
    }
    committed_ = true;
    sync_path(final_path_.parent_path(), O_DIRECTORY);
    if (old.second >= 0) {
        fs::remove_all(old.first, ignored);
        close(old.second);
    }
}

void remove_directory_atomically(const fs::path& directory) {
    const auto [away, fd] = rename_away(directory, "-");
    std::error_code error;
    fs::remove_all(away, error);
    close(fd);
    if (error) fail(error.value(), directory, "delete all of it; the rest is " + away.string());
}

size_t remove_stale_temporaries(const fs::path& directory) {
    std::error_code error;
    std::vector<fs::path> candidates;
    for (const auto& entry : fs::directory_iterator(directory, error)) candidates.push_back(entry.path());
    std::sort(candidates.begin(), candidates.end());
    size_t leftovers = 0;
    for (const fs::path& path : candidates) {
        TemporaryName name;
        if (!parse_temporary_name(path.filename().string(), name)) continue;
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) continue;
        const Lock lock = try_lock(fd);
        struct stat opened {};
        struct stat named {};
        // Committed since it was opened: the name is gone, or is another writer's by now.
        const bool same = fstat(fd, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
                          opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
        const bool dead = name.pid > 0 && kill(name.pid, 0) != 0 && errno == ESRCH;
        if (same && (lock == Lock::taken || (lock == Lock::unsupported && dead))) {
            const fs::path replaced = path.parent_path() / name.replaced;
            const bool restore = !name.replaced.empty() && !fs::exists(fs::symlink_status(replaced, error));
            if (restore) {
                fs::rename(path, replaced, error);
            } else {
                fs::remove_all(path, error);
            }
            if (!error) ++leftovers;
        }
        close(fd);
    }
    return leftovers;
}

DirectoryLock::DirectoryLock(const fs::path& directory)
    : directory_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (directory_.is_open() && flock(directory_.get(), LOCK_EX | LOCK_NB) == 0) return;
    const int error = errno;
    if (error == EWOULDBLOCK)
        throw UserError({.subject = directory.string(),
                         .given = "another run is writing into this directory",
                         .hint = "wait for it, or give another directory"});
    // File systems without locks (some network ones) must not prevent training: a directory that opens is enough there.
    if (error == ENOLCK || error == ENOTSUP) return;
    throw IoError({.subject = directory.string(), .given = "cannot be opened: " + system_text(error)});
}

}  // namespace slab::data
