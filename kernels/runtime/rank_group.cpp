// The last rank to come completes the meeting for all. The others sleep until then, or until a missing one is overdue.
#include "kernels/runtime/rank_group.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace slab {

namespace {

std::string text_of(const std::exception_ptr& cause) {
    try {
        std::rethrow_exception(cause);
    } catch (const PeerFailed& e) {
        return e.why;
    } catch (const std::exception& e) {
        return e.what();
    } catch (...) {
        return "unknown exception";
    }
}

std::string seconds_text(std::chrono::milliseconds time) {
    const auto ms = time.count();
    return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

// A process's meeting as bytes: for each of its ranks the tag's text and the bytes, each after its length.
void append(Bytes& to, const void* data, size_t bytes) {
    const auto length = static_cast<uint64_t>(bytes);
    const auto* const head = reinterpret_cast<const std::byte*>(&length);
    to.insert(to.end(), head, head + sizeof length);
    const auto* const body = static_cast<const std::byte*>(data);
    to.insert(to.end(), body, body + bytes);
}

Bytes take(const Bytes& from, size_t& at) {
    uint64_t length = 0;
    if (from.size() - at < sizeof length) throw std::logic_error("a meeting's message is cut short");
    std::memcpy(&length, from.data() + at, sizeof length);
    at += sizeof length;
    if (from.size() - at < length) throw std::logic_error("a meeting's message is cut short");
    Bytes piece(from.begin() + static_cast<std::ptrdiff_t>(at),
                from.begin() + static_cast<std::ptrdiff_t>(at + length));
    at += length;
    return piece;
}

}  // namespace

int Comm::size() const {
    return group_.size();
}
std::vector<Bytes> Comm::meet(Bytes bytes, CallTag tag) {
    return group_.meet(rank_, std::move(bytes), tag);
}
void Comm::alive(CallTag where) {
    group_.alive(rank_, where);
}

RankGroup::RankGroup(int size, std::chrono::milliseconds timeout) : RankGroup(size, 0, size, timeout, nullptr) {}

RankGroup::RankGroup(int size, int first_rank, int local, std::chrono::milliseconds timeout, OutsideMeeting* outside)
    : size_(size), first_rank_(first_rank), timeout_(timeout), outside_(outside) {
    if (local < 1 || first_rank < 0 || first_rank + local > size || (local < size && outside == nullptr))
        throw std::logic_error("a group of " + std::to_string(size) + " ranks with " + std::to_string(local) + " here");
    const Clock::rep now = Clock::now().time_since_epoch().count();
    for (int rank = 0; rank < local; ++rank) places_.emplace_back(std::make_unique<Place>())->seen = now;
}

RankGroup::~RankGroup() = default;

void RankGroup::alive(int rank, CallTag where) {
    Place& mine = place(rank);
    mine.what.store(where.what, std::memory_order_relaxed);
    mine.number.store(where.number, std::memory_order_relaxed);
    mine.seen.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    if (at_sign_of_life) at_sign_of_life(rank, where);
}

std::vector<Bytes> RankGroup::meet(int rank, Bytes bytes, CallTag tag) {
    alive(rank, tag);
    std::unique_lock lock(mutex_);
    if (failure_) throw PeerFailed(failure_->rank, failure_->why);
    Place& mine = place(rank);
    mine.left = false;
    if (mine.here) throw std::logic_error("rank " + std::to_string(rank) + " is in a meeting already");
    mine.here = true;
    mine.bytes = std::move(bytes);
    mine.tag = tag;
    if (++here_ == places_.size())
        complete(lock);
    else
        await(lock, meetings_);
    return ended_;
}

// Called by the last to come.
void RankGroup::complete(std::unique_lock<std::mutex>& lock) {
    std::vector<Bytes> all;
    try {
        if (const std::string unequal = unequal_tags(); !unequal.empty()) throw std::logic_error(unequal);
        all = outside_ == nullptr ? std::vector<Bytes>() : gather(lock);
        if (outside_ == nullptr)
            for (const auto& each : places_) all.push_back(std::move(each->bytes));
    } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        const std::exception_ptr cause = std::current_exception();
        fail_locked(first_rank_, text_of(cause), cause);
        throw;
    }
    ended_ = std::move(all);
    for (const auto& each : places_) each->here = false;
    here_ = 0;
    ++meetings_;
    changed_.notify_all();
}

std::string RankGroup::unequal_tags() const {
    const Place& first = *places_.front();
    for (size_t i = 1; i < places_.size(); ++i)
        if (!(places_[i]->tag == first.tag))
            return "ranks are not at the same call: rank " + std::to_string(first_rank_) + " at " + first.tag.text() +
                   ", rank " + std::to_string(first_rank_ + static_cast<int>(i)) + " at " + places_[i]->tag.text();
    return "";
}

// With the other processes; the lock is open meanwhile, and no rank here can come or go.
std::vector<Bytes> RankGroup::gather(std::unique_lock<std::mutex>& lock) {
    Bytes message;
    const std::string tag = places_.front()->tag.text();
    append(message, tag.data(), tag.size());
    for (const auto& each : places_) append(message, each->bytes.data(), each->bytes.size());
    lock.unlock();
    const auto ticking = [this] {
        throw_if_failed();
        const Clock::rep now = Clock::now().time_since_epoch().count();
        for (const auto& each : places_) each->seen.store(now, std::memory_order_relaxed);
    };
    const std::vector<Bytes> messages = outside_->meet(message, ticking);
    std::vector<Bytes> all;
    std::string first_tag;
    for (size_t process = 0; process < messages.size(); ++process) {
        size_t at = 0;
        const Bytes its = take(messages[process], at);
        const std::string its_tag(reinterpret_cast<const char*>(its.data()), its.size());
        if (process == 0) first_tag = its_tag;
        if (its_tag != first_tag)
            throw std::logic_error("ranks are not at the same call: rank 0 at " + first_tag + ", rank " +
                                   std::to_string(all.size()) + " at " + its_tag);
        while (at < messages[process].size()) all.push_back(take(messages[process], at));
    }
    lock.lock();
    return all;
}

// Fails the group if a rank that is not in the meeting is overdue; else returns when the first of them would be.
RankGroup::Clock::time_point RankGroup::fail_missing_locked() {
    const Clock::time_point now = Clock::now();
    // All are here while the last one speaks with other processes, which has a time-out of its own.
    Clock::time_point due = now + timeout_;
    for (size_t i = 0; i < places_.size() && !failure_; ++i) {
        const Place& its = *places_[i];
        const Clock::time_point seen(Clock::duration(its.seen.load(std::memory_order_relaxed)));
        if (its.here || its.left) continue;
        due = std::min(due, seen + timeout_);
        if (now < seen + timeout_) continue;
        const CallTag where{its.what.load(std::memory_order_relaxed), its.number.load(std::memory_order_relaxed)};
        const std::string why = "has been at `" + where.text() + "` for " + seconds_text(timeout_);
        const int missing = first_rank_ + static_cast<int>(i);
        fail_locked(missing, why, std::make_exception_ptr(PeerFailed(missing, why)));
    }
    return due;
}

// Until the meeting that is under way has ended. A failure that comes after its end is for the next one.
void RankGroup::await(std::unique_lock<std::mutex>& lock, uint64_t meeting) {
    while (meetings_ == meeting) {
        const Clock::time_point due = fail_missing_locked();
        if (failure_) throw PeerFailed(failure_->rank, failure_->why);
        changed_.wait_until(lock, due);
    }
}

void RankGroup::look_for_missing() {
    const std::lock_guard lock(mutex_);
    fail_missing_locked();
}

void RankGroup::leave(int rank) {
    const std::lock_guard lock(mutex_);
    place(rank).left = true;
}

void RankGroup::fail(int rank, std::exception_ptr cause) {
    const std::string why = text_of(cause);
    const std::lock_guard lock(mutex_);
    fail_locked(rank, why, std::move(cause));
}

void RankGroup::fail_locked(int rank, const std::string& why, std::exception_ptr cause) {
    if (failure_) return;
    failure_ = RankFailure{rank, why, std::move(cause)};
    for (const auto& call : failure_calls_) call();
    changed_.notify_all();
}

std::optional<RankFailure> RankGroup::failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
}

void RankGroup::throw_if_failed() const {
    const std::lock_guard lock(mutex_);
    if (failure_) throw PeerFailed(failure_->rank, failure_->why);
}

void RankGroup::on_failure(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    failure_calls_.push_back(std::move(call));
}

}  // namespace slab
