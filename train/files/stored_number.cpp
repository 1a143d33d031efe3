// The one text for weights that are not finite, whatever file they are in.
#include "train/files/stored_number.h"

#include "data/base/error.h"

namespace slab::train {

void refuse_not_finite(const std::string& subject, float value, size_t elem, size_t offset_bytes) {
    throw data::UserError({.subject = subject,
                           .given = std::string("weights contain ") + (value != value ? "NaN" : "an infinity") +
                                    " at element " + std::to_string(elem) + ", offset " + std::to_string(offset_bytes),
                           .wanted = "finite numbers",
                           .hint = "the file is damaged, or the run that wrote it had diverged"});
}

}  // namespace slab::train
