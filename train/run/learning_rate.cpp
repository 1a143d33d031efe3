#include "train/run/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace slab::train {

double learning_rate_at(const TrainOptions& o, int64_t step, int64_t total) {
    const int64_t warmup = o.warmup_steps >= 0
                               ? o.warmup_steps
                               : static_cast<int64_t>(std::ceil(o.warmup_ratio * static_cast<double>(total)));
    if (step < warmup) return o.learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (o.lr_scheduler == "constant") return o.learning_rate;
    const double progress =
        static_cast<double>(step - warmup) / static_cast<double>(std::max<int64_t>(1, total - warmup));
    if (o.lr_scheduler == "linear") return o.learning_rate * std::max(0.0, 1 - progress);
    return o.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, progress)));
}

}  // namespace slab::train
