// A position in a GGUF file that moves forward, over a small window of the file.
//
// Invariant: reads fill their destination, or throw UserError with the file, the offset and the thing read. Nothing
// past the file's end is asked for. A length found in the file is compared with the bytes left before it sizes
// anything.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "data/base/error.h"
#include "data/base/input_file.h"

namespace slab::data {

class GgufCursor {
  public:
    explicit GgufCursor(const InputFile& file) : file_(file) {}

    size_t offset() const { return offset_; }
    size_t left() const { return file_.size_bytes() - offset_; }

    // "FILE, offset N: given; wanted ...".
    [[noreturn]] void fail(size_t at_bytes, ErrorText error) const {
        error.subject = file_.path().string() + ", offset " + std::to_string(at_bytes);
        throw UserError(error);
    }

    // `what` is a callable that makes the thing's name, for errors only: most reads succeed.
    template <class What>
    void read(void* dst, size_t bytes, const What& what) {
        if (bytes > left()) {
            fail(offset_, {.given = what() + " takes " + std::to_string(bytes) + " bytes, but " +
                                    std::to_string(left()) + " are left of the file",
                           .hint = kCutShortHint});
        }
        char* to = static_cast<char*>(dst);
        while (bytes != 0) {
            if (offset_ < window_begin_ || offset_ >= window_begin_ + window_.size()) refill();
            const size_t at = offset_ - window_begin_;
            const size_t some = std::min(bytes, window_.size() - at);
            std::memcpy(to, window_.data() + at, some);
            to += some;
            offset_ += some;
            bytes -= some;
        }
    }

    template <class T, class What>
    T number(const What& what) {
        T value;
        read(&value, sizeof value, what);
        return value;
    }

    template <class What>
    std::string text(size_t most_bytes, const What& what) {
        const size_t at = offset_;
        const auto bytes = number<uint64_t>([&] { return "the length of " + what(); });
        if (bytes > left()) {
            fail(at, {.given = what() + " says a length of " + std::to_string(bytes) + " bytes, but " +
                               std::to_string(left()) + " are left of the file",
                      .hint = kCutShortHint});
        }
        if (bytes > most_bytes) {
            fail(at, {.given = what() + " has " + std::to_string(bytes) + " bytes",
                      .wanted = "at most " + std::to_string(most_bytes)});
        }
        std::string value(bytes, '\0');
        read(value.data(), value.size(), what);
        return value;
    }

  private:
    void refill() {
        constexpr size_t window_bytes = size_t{64} << 10;
        window_begin_ = offset_;
        window_.resize(std::min(window_bytes, left()));
        file_.read(offset_, window_.data(), window_.size(), "header");
    }

    const InputFile& file_;
    size_t offset_ = 0, window_begin_ = 0;
    std::vector<char> window_;
};

}  // namespace slab::data
