// A fault for tests of failures on several ranks: one rank throws, hangs, or sends the process a signal, at a place.
//
// SLABSTREAM_FAULT="RANK:PLACE:TIMES:KIND", such as "2:gradients:3:hang": rank 2, when it is at `gradients` for the
// third time. KIND: throw, hang, interrupt (SIGINT to the process) or kill (SIGKILL). Places are the texts of CallTags.
#pragma once

#include <functional>

#include "kernels/runtime/comm.h"

namespace slab::train {

// For RankGroup::at_sign_of_life; empty without the variable. Throws data::UserError when it is malformed.
std::function<void(int rank, CallTag where)> fault_point_of_environment();

}  // namespace slab::train
