// flock on the file itself. Another writer may replace the file (atomic_file.h) between opening and locking; then the
// new one is opened.
#include "data/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "data/base/error.h"

namespace slab::data {

FileLock::FileLock(const std::filesystem::path& file, const char* what) {
    for (bool same = false; !same;) {
        file_ = Descriptor(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
        if (!file_.is_open())
            throw IoError({.subject = file.string(), .given = "cannot be opened for writing: " + system_text(errno)});
        if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
            throw UserError({.subject = file.string(),
                             .given = std::string("another run is writing ") + what + " into this file",
                             .hint = "wait for it, or name another file"});
        struct stat opened = {}, named = {};
        same = fstat(file_.get(), &opened) == 0 && stat(file.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
               opened.st_dev == named.st_dev;
    }
}

}  // namespace slab::data
