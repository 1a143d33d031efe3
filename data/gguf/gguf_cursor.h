// A place in a GGUF file that moves forward, over a small window of it.
//
// Invariant: reads fill their destination or throw, naming the file, the offset and the thing read; nothing past the
// file's end is asked for, and no length found in the file sizes anything before it was compared with what is left.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/base/input_file.h"

namespace slab::data {

class GgufCursor {
  public:
    explicit GgufCursor(const InputFile& file) : file_(file) {}

    size_t offset() const { return offset_; }
    size_t left() const { return file_.size_bytes() - offset_; }

    [[noreturn]] void fail(size_t at_bytes, const std::string& what) const {
        throw std::runtime_error(file_.path().string() + ": offset " + std::to_string(at_bytes) + ": " + what);
    }

    // `what` is a callable that gives the thing's name: most reads succeed, and names are made of several pieces.
    template <class What>
    void read(void* dst, size_t bytes, const What& what) {
        if (bytes > left()) {
            fail(offset_, what() + " takes " + std::to_string(bytes) + " bytes, but " + std::to_string(left()) +
                              " are left of the file; was the download cut short?");
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
            fail(at, what() + " says a length of " + std::to_string(bytes) + " bytes, but " + std::to_string(left()) +
                         " are left of the file; was the download cut short?");
        }
        if (bytes > most_bytes) {
            fail(at, what() + " has " + std::to_string(bytes) + " bytes, wanted at most " + std::to_string(most_bytes));
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
