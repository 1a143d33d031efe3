// The one formatter of errors.
#include "data/base/error.h"

#include <system_error>

namespace slab::data {

std::string ErrorText::text() const {
    std::string text = subject;
    if (!given.empty()) text += (text.empty() ? "" : ": ") + given;
    if (!wanted.empty()) text += (text.empty() ? "wanted " : given.empty() ? ": wanted " : "; wanted ") + wanted;
    if (!hint.empty()) text += ". Hint: " + hint;
    return text;
}

std::string system_text(int error) {
    return std::generic_category().message(error);
}

}  // namespace slab::data
