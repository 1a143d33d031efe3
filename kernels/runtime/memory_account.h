// Counts device memory by category and holds it under a budget.
//
// Every device allocation goes through one account, so that what the plan printed and what was taken can be compared
// byte by byte, and `--vram-budget` holds on a larger card too. Sizes are the bytes asked for: no rounding is hidden
// here.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <string>

#include "kernels/runtime/device_error.h"

namespace slab {

enum class MemoryCategory { weights_resident, ring, trained, optimizer, activations, logits, workspace };
inline constexpr size_t kMemoryCategories = 7;
const char* name_of(MemoryCategory category);  // "weights resident", "ring", ...

std::string memory_text(size_t bytes);  // as screens show sizes: "10.80 GiB", "3.2 MiB", "0.5 KiB"

// The budget does not hold what was asked for; nothing was allocated.
struct OutOfBudget : DeviceError {
    using DeviceError::DeviceError;
};

class MemoryAccount {
  public:
    // budget_bytes: 0 means no limit. reserved_bytes: what driver and libraries take, counted from the start.
    explicit MemoryAccount(size_t budget_bytes = 0, size_t reserved_bytes = 0);

    // Throws OutOfBudget naming `what`, the category, the bytes asked for and the bytes left.
    void charge(MemoryCategory category, size_t bytes, const std::string& what);
    void release(MemoryCategory category, size_t bytes);
    // Throws OutOfBudget, naming the action and the bytes missing, when the budget does not hold `bytes` more; takes
    // nothing. So an action of many allocations is refused before it began.
    void require(size_t bytes, const std::string& action, const std::string& hint) const;

    size_t budget_bytes() const;
    size_t reserved_bytes() const;
    size_t used_bytes() const;  // reserved included
    size_t peak_bytes() const;  // reserved included
    size_t used_bytes(MemoryCategory category) const;
    size_t peak_bytes(MemoryCategory category) const;
    void reset_peaks();  // peaks become what is in use now

  private:
    mutable std::mutex mutex_;
    size_t budget_bytes_, reserved_bytes_, used_bytes_, peak_bytes_;
    std::array<size_t, kMemoryCategories> used_by_category_{}, peak_by_category_{};
};

}  // namespace slab
