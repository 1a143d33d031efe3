// Files spoiled at random: bytes, lengths, pieces, ends, and numbers in important places. A mutation is a function of
// its number alone.
//
// SLABSTREAM_MUTATIONS=10000 build/tests -tc="*broken*" runs more of each kind than CI. With SAN=address it is the
// check to run by hand after a change to a reader.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "tests/temporary_files.h"

namespace slab::test {

inline size_t mutations(size_t by_default) {
    const char* given = std::getenv("SLABSTREAM_MUTATIONS");
    return given ? std::strtoull(given, nullptr, 10) : by_default;
}

// put(), for a file that is written again and again. Some file systems sync a truncated file to the disk at once.
inline void put_anew(const std::filesystem::path& path, std::string_view bytes) {
    std::filesystem::remove(path);
    put(path, bytes);
}

class Spoiler {
  public:
    explicit Spoiler(uint64_t number) : random_(number) {}

    size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }

    // One to four changes, three quarters of them in the first `header_bytes`. Numbers are overwritten in binary, as 1
    // to 8 bytes, or, with `as_text`, put in place of digits or anywhere as text.
    std::string spoilt(std::string bytes, size_t header_bytes, bool as_text) {
        for (size_t left = 1 + below(4); left > 0 && !bytes.empty(); --left) {
            const size_t header = header_bytes < bytes.size() ? header_bytes : bytes.size();
            const size_t at = below(below(4) != 0 ? header : bytes.size());
            switch (below(9)) {
                case 0:
                    if (below(3) == 0) bytes.resize(at);
                    break;
                case 1:
                    bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
                    break;
                case 2:
                    bytes.erase(at, 1 + below(20));
                    break;
                case 3:
                    bytes.insert(at, bytes.substr(below(bytes.size()), below(60)));
                    break;
                case 4:
                    bytes[at] = static_cast<char>(random_());
                    break;
                case 5:
                    bytes.insert(at, 1 + below(3), as_text ? "0123456789-{}[],:\"\\e.\n\r\xff"[below(24)] : '\0');
                    break;
                default:
                    put_number(bytes, at, as_text);
            }
        }
        return bytes;
    }

  private:
    // Values that break lengths, counts, offsets and sizes.
    uint64_t tricky(size_t file_bytes) {
        const uint64_t numbers[] = {0,
                                    1,
                                    255,
                                    65536,
                                    INT32_MAX,
                                    uint64_t{INT32_MAX} + 1,
                                    UINT32_MAX,
                                    uint64_t{1} << 40,
                                    INT64_MAX,
                                    uint64_t{INT64_MAX} + 1,
                                    UINT64_MAX - 7,
                                    UINT64_MAX,
                                    file_bytes - 1,
                                    file_bytes + 1,
                                    random_() >> below(64)};
        return numbers[below(std::size(numbers))];
    }

    void put_number(std::string& bytes, size_t at, bool as_text) {
        uint64_t number = tricky(bytes.size());
        if (as_text) {
            constexpr const char* digits = "0123456789";
            const size_t first = bytes.find_first_of(digits, at);
            const bool over = first != std::string::npos && below(4) != 0;
            const size_t end = over ? bytes.find_first_not_of(digits, first) : at;
            const std::string text = (below(8) == 0 ? "-" : "") + std::to_string(number) + (below(8) == 0 ? "e99" : "");
            bytes.replace(over ? first : at, (end == std::string::npos ? bytes.size() : end) - (over ? first : at),
                          text);
            return;
        }
        if (below(2) == 0) at &= ~size_t{3};  // where the formats' own numbers stand
        for (size_t width = size_t{1} << below(4); width > 0 && at < bytes.size(); --width, ++at, number >>= 8)
            bytes[at] = static_cast<char>(number);
    }

    std::mt19937_64 random_;
};

}  // namespace slab::test
