// A file opened for reading at given offsets, as every parser of foreign files here reads: the destination is filled or
// the read throws.
//
// Why pread and not mmap: a file that shrinks or sits on a failing disk then gives an error that names the file and
// the offset, where a mapping would kill the process with SIGBUS. Invariant: nothing is read past `size_bytes()`,
// the size at opening, so a length found in a file can be checked against it before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace slab::data {

class InputFile {
  public:
    // Throws std::runtime_error when the path is missing, unreadable or no regular file.
    explicit InputFile(std::filesystem::path path);
    ~InputFile();
    InputFile(InputFile&& other) noexcept;
    InputFile& operator=(InputFile&& other) noexcept;
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;

    const std::filesystem::path& path() const { return path_; }
    size_t size_bytes() const { return size_bytes_; }

    // Fills dst [bytes] from offset_bytes on; throws when the file was written to since it was opened, since what was
    // checked then may not hold. Any thread may call it. `what` names the thing being read in the error.
    void read(size_t offset_bytes, void* dst, size_t bytes, std::string_view what) const;
    // Everything, unless it is more than most_bytes: that is refused before anything is allocated.
    std::string read_all(std::string_view what, size_t most_bytes = SIZE_MAX) const;

  private:
    std::filesystem::path path_;
    int fd_ = -1;
    size_t size_bytes_ = 0;
    int64_t changed_ns_ = 0;  // when the file was last written to, at opening
};

}  // namespace slab::data
