// Reading at offsets with system calls. Interrupted and short reads are continued. A file that ends before the wanted
// bytes has shrunk since it was opened, which is an error.
#include "data/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "data/base/error.h"

namespace slab::data {

namespace {
int64_t change_time_ns(const struct stat& info) {
    return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}
}  // namespace

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
    // Non-blocking: a FIFO in the file's place is refused below instead of waited for.
    file_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file_.is_open())
        throw IoError({.subject = path_.string(), .given = "cannot be opened for reading: " + system_text(errno)});
    struct stat info = {};
    const bool known = ::fstat(file_.get(), &info) == 0;
    if (!known || !S_ISREG(info.st_mode)) {
        const bool directory = known && S_ISDIR(info.st_mode);
        throw UserError({.subject = path_.string(),
                         .given = directory ? "is a directory" : "is no regular file",
                         .wanted = "a file"});
    }
    size_bytes_ = static_cast<size_t>(info.st_size);
    changed_ns_ = change_time_ns(info);
}

void InputFile::read(size_t offset_bytes, void* dst, size_t bytes, std::string_view what) const {
    const auto fail = [&](size_t at_bytes, const std::string& why) {
        throw IoError(
            {.subject = path_.string(),
             .given = std::string(what) + ": reading stopped at offset " + std::to_string(at_bytes) + ": " + why,
             .wanted = std::to_string(bytes) + " bytes at offset " + std::to_string(offset_bytes)});
    };
    if (offset_bytes > size_bytes_ || bytes > size_bytes_ - offset_bytes) {
        fail(size_bytes_, "the file ends there");
    }
    char* to = static_cast<char*>(dst);
    for (size_t done_bytes = 0; done_bytes < bytes;) {
        const ssize_t got =
            ::pread(file_.get(), to + done_bytes, bytes - done_bytes, static_cast<off_t>(offset_bytes + done_bytes));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail(offset_bytes + done_bytes, system_text(errno));
        if (got == 0) fail(offset_bytes + done_bytes, "the file has become shorter since it was opened");
        done_bytes += static_cast<size_t>(got);
    }
    struct stat info = {};
    if (::fstat(file_.get(), &info) != 0 || change_time_ns(info) != changed_ns_)
        throw IoError({.subject = path_.string(),
                       .given = std::string(what) + ": the file was written to since it was opened",
                       .wanted = "a file that stays as it is while it is used"});
}

void InputFile::drop_cached() const {
    (void)::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);  // advice: a system that does not take it reads on
}

std::string InputFile::read_all(std::string_view what, size_t most_bytes) const {
    if (size_bytes_ > most_bytes)
        throw UserError({.subject = path_.string(),
                         .given = "has " + std::to_string(size_bytes_) + " bytes",
                         .wanted = std::string(what) + " of at most " + std::to_string(most_bytes) + " bytes"});
    std::string content;
    try {
        content.resize(size_bytes_);
    } catch (const std::bad_alloc&) {
        throw UserError({.subject = path_.string(),
                         .given = "has " + std::to_string(size_bytes_) + " bytes, and memory for " + std::string(what) +
                                  " of that size is not there",
                         .hint = "cut the file, or lift the limit"});
    }
    read(0, content.data(), content.size(), what);
    return content;
}

}  // namespace slab::data
