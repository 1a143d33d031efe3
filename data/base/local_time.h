// A date and time of this place, and its text, which files keep.
#pragma once

#include <ctime>
#include <optional>
#include <string>

namespace slab::data {

std::tm local_time_now();
// "2026-12-01 09:30:00"
std::string local_time_text(const std::tm& time);
// Nothing for text of another form.
std::optional<std::tm> local_time_of(const std::string& text);

}  // namespace slab::data
