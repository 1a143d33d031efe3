// Whether work shall stop: one flag, set by a signal (stop_signals.h) or by whoever runs the work.
//
// Work asks between pieces. Interrupted is no std::exception: it is nobody's error, and what handles errors lets it
// pass.
#pragma once

#include <atomic>
#include <cstdint>

namespace slab::data {

struct Interrupted {};

class StopToken {
  public:
    StopToken() = default;  // never requested
    // The flag must outlive the token and its copies.
    explicit StopToken(const std::atomic<bool>& flag) : flag_(&flag) {}
    // Requested when it is asked for the `questions`-th time (1, 2, ...), counted down there. So a test stops work at
    // each place that asks, and sees how many there are.
    explicit StopToken(std::atomic<int64_t>& questions) : questions_(&questions) {}

    bool requested() const {
        if (questions_ != nullptr) return --*questions_ <= 0;
        return flag_ != nullptr && *flag_;
    }
    void throw_if_requested() const {
        if (requested()) throw Interrupted{};
    }

  private:
    const std::atomic<bool>* flag_ = nullptr;
    std::atomic<int64_t>* questions_ = nullptr;
};

}  // namespace slab::data
