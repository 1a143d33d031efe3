// Ranks that have a GPU each exchange through NCCL: its links between GPUs, and nothing of its sums.
//
// NCCL's calls return at once and are then asked for their end, with the group's time-out; so no call waits without
// end. The host meets before and after each of them. Threads of one process could deadlock without that: one of them
// may fill its launch queue while another's operation is yet to come.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "kernels/runtime/comm.h"
#include "kernels/runtime/rank_group.h"

namespace slab {

// Device memory that a plan sets aside for NCCL on each GPU; measured: 220 MiB at the start, 250 to 300 at first use.
inline constexpr size_t kNcclBytes = size_t{544} << 20;

// "" or why this build cannot use NCCL, with what to install.
std::string why_no_nccl();

// Throws DeviceError where why_no_nccl() says so. device: must outlive it; kNcclBytes are charged to its account.
std::unique_ptr<Comm> make_nccl_comm(RankGroup& group, int rank, Device& device);

}  // namespace slab
