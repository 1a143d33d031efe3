// A file opened for reading at given offsets. Every parser of foreign files reads through it: the destination is filled
// or the read throws.
//
// Why pread and not mmap: a file may shrink or sit on a failing disk. A read then gives an error with file and offset;
// a mapping would kill the process with SIGBUS. Invariant: nothing is read past `size_bytes()`, the size at opening. So
// a length found in a file can be checked against it before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "data/base/descriptor.h"

namespace slab::data {

// Hints for files that did not arrive whole.
inline constexpr char kCutShortHint[] = "was the download cut short?";
inline constexpr char kGitLfsHint[] = "this is a Git LFS pointer; `git lfs pull` fetches the file itself";

class InputFile {
  public:
    // Throws IoError when the path is missing or unreadable, UserError when it is no regular file.
    explicit InputFile(std::filesystem::path path);

    const std::filesystem::path& path() const { return path_; }
    size_t size_bytes() const { return size_bytes_; }

    // Fills dst [bytes] from offset_bytes on. Throws IoError, also when the file was written to since it was opened:
    // what was checked then may not hold. Any thread may call it. `what` names the thing being read in the error.
    void read(size_t offset_bytes, void* dst, size_t bytes, std::string_view what) const;
    // Lets the system drop what it keeps of the file in memory.
    void drop_cached() const;
    // The whole file. One of more than most_bytes is refused, as a UserError, before anything is allocated.
    std::string read_all(std::string_view what, size_t most_bytes = SIZE_MAX) const;

  private:
    std::filesystem::path path_;
    Descriptor file_;
    size_t size_bytes_ = 0;
    int64_t changed_ns_ = 0;  // when the file was last written to, at opening
};

}  // namespace slab::data
