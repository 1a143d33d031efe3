// The memory plan as people read it, what a plan is checked against, and the advice when it does not fit.
//
// Every size comes from ModelLayout.
#pragma once

#include <cstddef>
#include <string>

#include "train/model/model_layout.h"

namespace slab::train {

// The plan as a table. reserved_bytes: driver and libraries. Names the flags that would help if the budget (0: no
// limit) does not hold the plan.
std::string describe_plan(const ModelLayout& layout, size_t reserved_bytes, size_t budget_bytes);
// Throws data::UserError with that advice when the plan exceeds the budget (0: no limit).
void check_budget(const ModelLayout& layout, size_t reserved_bytes, size_t budget_bytes);

// The same check against the device's free memory. available_bytes: 0 when it is not known.
void check_available(const ModelLayout& layout, size_t reserved_bytes, size_t available_bytes);
// Throws data::UserError when the host memory of the plan exceeds what the machine, or the container, has left. On
// the CPU backend device memory is host memory too.
void check_host_memory(const ModelLayout& layout, size_t available_bytes);
// The same for all ranks of a process, which have one copy of the slabs. On the CPU each has its own device memory.
void check_host_memory_of_ranks(const ModelLayout& layout, size_t available_bytes);
// The same check of the address space that a limit (ulimit -v) leaves. Products on `threads` CPU threads map more.
void check_address_space(const ModelLayout& layout, size_t free_bytes, int threads);

}  // namespace slab::train
