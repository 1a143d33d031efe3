// The day of the week and of the year follow from the date; mktime() finds them.
#include "data/base/local_time.h"

#include <array>
#include <cstdio>

namespace slab::data {

std::tm local_time_now() {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    return local;
}

std::string local_time_text(const std::tm& time) {
    std::array<char, 80> text{};
    std::snprintf(text.data(), text.size(), "%04d-%02d-%02d %02d:%02d:%02d", time.tm_year + 1900, time.tm_mon + 1,
                  time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec);
    return text.data();
}

std::optional<std::tm> local_time_of(const std::string& text) {
    std::tm time{};
    if (std::sscanf(text.c_str(), "%4d-%2d-%2d %2d:%2d:%2d", &time.tm_year, &time.tm_mon, &time.tm_mday, &time.tm_hour,
                    &time.tm_min, &time.tm_sec) != 6)
        return std::nullopt;
    time.tm_year -= 1900;
    time.tm_mon -= 1;
    time.tm_isdst = -1;
    const std::tm given = time;
    std::mktime(&time);
    // mktime() moves what is no date, such as a 13th month, and an hour that a change of clocks leaves out.
    if (time.tm_year != given.tm_year || time.tm_mon != given.tm_mon || time.tm_mday != given.tm_mday)
        return std::nullopt;
    return time;
}

}  // namespace slab::data
