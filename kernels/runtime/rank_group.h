// The host's side of a run on several ranks: where they meet, their signs of life, and the first failure.
//
// Invariants: a meeting ends on all ranks with the same bytes, or with an exception on all. No wait is endless: a rank
// without a sign of life for the time-out fails the group, and is named with the place where it was last.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/runtime/comm.h"

namespace slab {

// Carries a meeting beyond this process. meet() is called by one thread of the process at a time.
class OutsideMeeting {
  public:
    virtual ~OutsideMeeting() = default;
    // Sends this process's bytes and returns those of all processes, in their order. `ticking` is called while it
    // waits, and throws to end the wait.
    virtual std::vector<Bytes> meet(const Bytes& of_process, const std::function<void()>& ticking) = 0;
};

struct RankFailure {
    int rank;
    std::string why;           // the error's text
    std::exception_ptr cause;  // what the rank threw; of a missing rank a PeerFailed
};

class RankGroup {
  public:
    using Clock = std::chrono::steady_clock;

    // The ranks first_rank .. first_rank + local - 1 of a run of `size` ranks live in this process. outside: needed
    // when others live elsewhere; must outlive this.
    explicit RankGroup(int size, std::chrono::milliseconds timeout);
    RankGroup(int size, int first_rank, int local, std::chrono::milliseconds timeout, OutsideMeeting* outside);
    ~RankGroup();
    RankGroup(const RankGroup&) = delete;
    RankGroup& operator=(const RankGroup&) = delete;

    int size() const { return size_; }
    int first_rank() const { return first_rank_; }
    int local() const { return static_cast<int>(places_.size()); }
    std::chrono::milliseconds timeout() const { return timeout_; }

    std::vector<Bytes> meet(int rank, Bytes bytes, CallTag tag);
    void alive(int rank, CallTag where);
    // A rank has ended with an error, which ends the meetings of all others. The first call counts. Any thread.
    void fail(int rank, std::exception_ptr cause);
    // The rank has ended and is missed nowhere.
    void leave(int rank);
    // Fails the group if a rank here, in no meeting, is overdue. For who waits for no meeting.
    void look_for_missing();
    std::optional<RankFailure> failure() const;
    void throw_if_failed() const;
    // Called once, by the thread that fails the group first: what else shall end, such as a transport's operations.
    void on_failure(std::function<void()> call);
    // Called at every sign of life and every meeting, on the rank's thread; set before the ranks start. Tests put
    // faults here.
    std::function<void(int rank, CallTag where)> at_sign_of_life;

  private:
    struct Place {
        std::atomic<const char*> what{"the start"};
        std::atomic<int64_t> number{-1};
        std::atomic<Clock::rep> seen{0};  // the latest sign of life
        bool here = false;                // in the meeting under way
        bool left = false;
        Bytes bytes;
        CallTag tag;
    };

    Place& place(int rank) const { return *places_.at(static_cast<size_t>(rank - first_rank_)); }
    void complete(std::unique_lock<std::mutex>& lock);
    std::vector<Bytes> gather(std::unique_lock<std::mutex>& lock);
    std::string unequal_tags() const;
    void await(std::unique_lock<std::mutex>& lock, uint64_t meeting);
    Clock::time_point fail_missing_locked();
    void fail_locked(int rank, const std::string& why, std::exception_ptr cause);

    const int size_, first_rank_;
    const std::chrono::milliseconds timeout_;
    OutsideMeeting* const outside_;
    std::vector<std::unique_ptr<Place>> places_;  // [local]

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    size_t here_ = 0;           // ranks in the meeting under way
    uint64_t meetings_ = 0;     // that have ended
    std::vector<Bytes> ended_;  // [size] of the latest one
    std::optional<RankFailure> failure_;
    std::vector<std::function<void()>> failure_calls_;
};

}  // namespace slab
