#include "data/base/byte_size.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <stdexcept>

#include "data/base/display.h"
#include "data/base/error.h"

namespace slab::data {

namespace {

// "GiB", "gb" and "G" as 3, "" and "B" as 0; -1 when it is no unit.
int power_of_1024(std::string unit) {
    std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::toupper(c); });
    if (unit.ends_with("IB")) unit.resize(unit.size() - 2);
    if (unit.size() == 2 && unit[1] == 'B') unit.resize(1);
    if (unit.empty() || unit == "B") return 0;
    const size_t at = std::string("KMGT").find(unit);
    return unit.size() > 1 || at == std::string::npos ? -1 : static_cast<int>(at) + 1;
}

}  // namespace

size_t parse_size(const std::string& text, const std::string& flag) {
    size_t used = 0;
    double value = 0;
    try {
        value = std::stod(text, &used);
    } catch (const std::logic_error&) {  // no number, or too large
        used = 0;
    }
    const int power = power_of_1024(text.substr(used));
    const double bytes = value * std::pow(1024.0, power);
    if (used == 0 || power < 0 || !(bytes >= 1 && bytes < 0x1p60))
        throw UserError({.subject = flag + " " + quote(text),
                         .given = "",
                         .wanted = "a size such as 12G, 800M or 123456 (bytes), below 2^60 bytes",
                         .hint = ""});
    if (used == text.size() && bytes < 1024)  // nobody means it
        throw UserError({.subject = flag + " " + text,
                         .given = "is " + text + " bytes",
                         .wanted = "a size such as 12G",
                         .hint = "did you mean " + text + "G?"});
    return static_cast<size_t>(bytes);
}

}  // namespace slab::data
