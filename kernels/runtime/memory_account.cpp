// Device memory by category, under a budget.
//
// A charge is made before the memory is taken, so a refusal leaves nothing allocated. Peaks are kept per category and
// for the sum: a card must hold the sum's peak, and the categories peak at different times.
#include "kernels/runtime/memory_account.h"

#include <algorithm>
#include <cassert>
#include <cstdio>

namespace slab {

namespace {

// Exact, since a refusal is compared with the plan, and short for the reader.
std::string readable(size_t bytes) {
    return std::to_string(bytes) + " bytes (" + memory_text(bytes) + ")";
}

}  // namespace

std::string memory_text(size_t bytes) {
    constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
    const double size = static_cast<double>(bytes);
    char text[32];
    if (size >= kGiB)
        std::snprintf(text, sizeof text, "%.2f GiB", size / kGiB);
    else if (size >= kMiB)
        std::snprintf(text, sizeof text, "%.1f MiB", size / kMiB);
    else
        std::snprintf(text, sizeof text, "%.1f KiB", size / kKiB);
    return text;
}

const char* name_of(MemoryCategory category) {
    switch (category) {
        case MemoryCategory::weights_resident:
            return "weights resident";
        case MemoryCategory::ring:
            return "ring";
        case MemoryCategory::trained:
            return "adapters";
        case MemoryCategory::optimizer:
            return "optimizer";
        case MemoryCategory::activations:
            return "activations";
        case MemoryCategory::logits:
            return "logits";
        case MemoryCategory::workspace:
            return "workspace";
    }
    throw std::logic_error("name_of: not a memory category");
}

MemoryAccount::MemoryAccount(size_t budget_bytes, size_t reserved_bytes)
    : budget_bytes_(budget_bytes),
      reserved_bytes_(reserved_bytes),
      used_bytes_(reserved_bytes),
      peak_bytes_(reserved_bytes) {}

void MemoryAccount::charge(MemoryCategory category, size_t bytes, const std::string& what) {
    const std::lock_guard lock(mutex_);
    const size_t limit_bytes = budget_bytes_ == 0 ? SIZE_MAX : budget_bytes_;
    const size_t left_bytes = limit_bytes > used_bytes_ ? limit_bytes - used_bytes_ : 0;
    if (bytes > left_bytes) {
        throw OutOfBudget("device memory: '" + what + "' (" + name_of(category) + ") needs " + readable(bytes) +
                          ", but only " + readable(left_bytes) + " are left of the budget of " + readable(limit_bytes) +
                          "; in use: " + readable(used_bytes_) + ", of which driver and libraries take " +
                          readable(reserved_bytes_) + ". Hint: raise the budget, or keep less on the device");
    }
    const size_t c = static_cast<size_t>(category);
    used_bytes_ += bytes;
    used_by_category_[c] += bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    peak_by_category_[c] = std::max(peak_by_category_[c], used_by_category_[c]);
}

void MemoryAccount::release(MemoryCategory category, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t c = static_cast<size_t>(category);
    assert(used_by_category_[c] >= bytes && "released more than was charged");
    used_bytes_ -= bytes;
    used_by_category_[c] -= bytes;
}

void MemoryAccount::require(size_t bytes, const std::string& action, const std::string& hint) const {
    if (budget_bytes_ == 0) return;
    const size_t in_use_bytes = used_bytes();
    const size_t left_bytes = budget_bytes_ > in_use_bytes ? budget_bytes_ - in_use_bytes : 0;
    if (bytes <= left_bytes) return;
    throw OutOfBudget(action + " needs " + readable(bytes) + " of device memory, " + std::to_string(left_bytes) +
                      " are left of the budget of " + std::to_string(budget_bytes_) + ": " +
                      std::to_string(bytes - left_bytes) + " bytes are missing. Hint: " + hint);
}

size_t MemoryAccount::budget_bytes() const {
    return budget_bytes_;
}
size_t MemoryAccount::reserved_bytes() const {
    return reserved_bytes_;
}

size_t MemoryAccount::used_bytes() const {
    const std::lock_guard lock(mutex_);
    return used_bytes_;
}

size_t MemoryAccount::peak_bytes() const {
    const std::lock_guard lock(mutex_);
    return peak_bytes_;
}

size_t MemoryAccount::used_bytes(MemoryCategory category) const {
    const std::lock_guard lock(mutex_);
    return used_by_category_[static_cast<size_t>(category)];
}

size_t MemoryAccount::peak_bytes(MemoryCategory category) const {
    const std::lock_guard lock(mutex_);
    return peak_by_category_[static_cast<size_t>(category)];
}

void MemoryAccount::reset_peaks() {
    const std::lock_guard lock(mutex_);
    peak_bytes_ = used_bytes_;
    peak_by_category_ = used_by_category_;
}

}  // namespace slab
