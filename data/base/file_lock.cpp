// flock on the file itself. A file that another writer replaces (atomic_file.h) between opening and locking is another
// file by then: it is opened again.
#include "data/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace slab::data {

FileLock::FileLock(const std::filesystem::path& file, const char* what) {
    for (bool same = false; !same;) {
        if (fd_ >= 0) close(fd_);
        fd_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
        if (fd_ < 0)
            throw std::runtime_error(file.string() +
                                     ": cannot be opened for writing: " + std::generic_category().message(errno));
        if (flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            close(std::exchange(fd_, -1));
            throw std::runtime_error(file.string() + ": another run is writing " + what +
                                     " into this file; wait for it, or name another file");
        }
        struct stat opened = {}, named = {};
        same = fstat(fd_, &opened) == 0 && stat(file.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
               opened.st_dev == named.st_dev;
    }
}

FileLock::~FileLock() {
    if (fd_ >= 0) close(fd_);
}

}  // namespace slab::data
