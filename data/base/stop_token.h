// Whether work shall stop: one flag, set by a signal (stop_signals.h) or by whoever runs the work.
//
// Work asks between pieces. Interrupted is no std::exception: it is nobody's error, and what handles errors lets it
// pass.
#pragma once

#include <atomic>

namespace slab::data {

struct Interrupted {};

class StopToken {
  public:
    StopToken() = default;  // never requested
    // The flag must outlive the token and its copies.
    explicit StopToken(const std::atomic<bool>& flag) : flag_(&flag) {}

    bool requested() const { return flag_ != nullptr && *flag_; }
    void throw_if_requested() const {
        if (requested()) throw Interrupted{};
    }

  private:
    const std::atomic<bool>* flag_ = nullptr;
};

}  // namespace slab::data
