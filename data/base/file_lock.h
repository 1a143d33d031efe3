// One process at a time writes into a file. The lock is held for as long as the object lives; the system releases it
// when the process ends in any way. A whole directory has DirectoryLock (atomic_file.h).
#pragma once

#include <filesystem>

#include "data/base/descriptor.h"

namespace slab::data {

class FileLock {
  public:
    FileLock() = default;
    // Makes an empty file when there is none. Throws IoError when the file cannot be opened for writing, UserError when
    // another process or object holds it. `what` is what is written there, for that message: "a log". File systems
    // without locks (some network ones) grant every lock.
    FileLock(const std::filesystem::path& file, const char* what);

  private:
    Descriptor file_;
};

}  // namespace slab::data
