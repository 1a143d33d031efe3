// Sums go over keys in their order, so that they do not depend on which layer was read first.
#include "train/model/encode_errors.h"

#include <algorithm>
#include <stdexcept>

namespace slab::train {

namespace {
using Entry = std::pair<const std::string, EncodeReport>;

const Entry& worst_of(const std::map<std::string, EncodeReport>& reports) {
    if (reports.empty()) throw std::logic_error("nothing was encoded");
    return *std::max_element(reports.begin(), reports.end(), [](const Entry& a, const Entry& b) {
        return a.second.relative_error() < b.second.relative_error();
    });
}
}  // namespace

double EncodeErrors::mean() const {
    EncodeReport all;
    for (const auto& [key, report] : reports_) all += report;
    return all.relative_error();
}

double EncodeErrors::worst() const {
    return reports_.empty() ? 0 : worst_of(reports_).second.relative_error();
}

const std::string& EncodeErrors::worst_tensor() const {
    return worst_of(reports_).first;
}

}  // namespace slab::train
