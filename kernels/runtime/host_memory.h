// Large host memory: taken as address space, touched by the threads that fill it, page-locked when it is full.
//
// Locking 13 GB through the driver touches every page in one thread. A loader that fills the memory from many threads
// has touched it already, so locking is a separate step here, after filling. Pages come from the GPU's NUMA node where
// a machine has several. Invariants: the bytes asked for are the bytes mapped, locked and counted; a refusal to lock
// leaves the memory as it was, usable and pageable.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/runtime/runtime.h"

namespace slab {

// Anonymous memory, zero, in huge pages where the system has them. Nothing is touched yet.
class HostMemory {
  public:
    HostMemory() = default;
    // numa_node: where its pages shall come from while there are any; -1 leaves it to the system. Throws DeviceError
    // naming `what` where the machine has not that much memory.
    HostMemory(size_t bytes, int numa_node, const std::string& what);
    ~HostMemory();  // unlocks first
    HostMemory(HostMemory&&) noexcept;
    HostMemory& operator=(HostMemory&&) noexcept;

    std::byte* data() const { return data_; }
    size_t bytes() const { return bytes_; }

    // Page-locks all of it. Throws PinnedLimit when the system refuses; the memory is then what it was.
    void lock(Device& device, const std::string& what);
    void unlock();
    bool locked() const { return locked_by_ != nullptr; }

    // Gives the mapping, which must not be locked, to an owner of another type, which ends in unmap_pages.
    std::byte* release();

  private:
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
    Device* locked_by_ = nullptr;
};
void unmap_pages(std::byte* data, size_t bytes);

// The backend's part: counts the bytes in device.host_pinned_bytes() and, on CUDA, registers the pages for every GPU of
// the process. The whole range or, with PinnedLimit, nothing.
void lock_pages(Device& device, std::byte* data, size_t bytes, const std::string& what);
void unlock_pages(Device& device, std::byte* data, size_t bytes);

// The page-locked ranges of the process, whichever Device locked them. A range is registered in pieces; one copy may
// not cross from a piece into the next, whichever Device copies. Safe to use from several threads.
class LockedRanges {
  public:
    explicit LockedRanges(size_t piece_bytes) : piece_bytes_(piece_bytes) {}
    void add(const std::byte* first, size_t bytes);
    void remove(const std::byte* first);
    // How many of `bytes` from `first` on one copy may take; all of them in pageable memory.
    size_t copyable_bytes(const std::byte* first, size_t bytes) const;

  private:
    const size_t piece_bytes_;
    mutable std::mutex mutex_;
    std::map<const std::byte*, size_t> bytes_;  // of each range, by its first byte
};

// Counts page-locked bytes and holds them under the limit that was set for the run, if any.
class PinnedAccount {
  public:
    explicit PinnedAccount(size_t limit_bytes) : limit_bytes_(limit_bytes) {}
    void charge(size_t bytes, const std::string& what);  // throws PinnedLimit
    void release(size_t bytes) { used_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
    size_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

  private:
    const size_t limit_bytes_;  // 0: none
    std::atomic<size_t> used_bytes_{0};
};

// The text of a PinnedLimit: `what` needs `bytes`, `locked_bytes` are locked in all, `why` no more can be.
std::string pinned_limit_text(const std::string& what, size_t bytes, size_t locked_bytes, const std::string& why);

// What the system could still give without swapping, under the limits of the control groups that this process is in (a
// container's, a batch job's). SIZE_MAX where none is known. root: "/" but in tests.
size_t available_host_bytes(const std::filesystem::path& root = "/");

// What the process may still map under its limits on address space and on data (ulimit -v, -d); SIZE_MAX where there is
// neither.
size_t free_address_bytes();

// The node whose memory is next to the PCI device, such as "0000:1B:00.0" in either case. Returns -1 where the machine
// has one node, the device's node is not known, or the node has no memory. sysfs: /sys, another directory in tests.
int numa_node_of(const std::string& pci_bus_id, const std::filesystem::path& sysfs = "/sys");
// Lets the calling thread run only on the CPUs of this node, where it may run there at all; -1: changes nothing.
void bind_thread_to_node(int numa_node, const std::filesystem::path& sysfs = "/sys");
// "0-3,8" -> 0 1 2 3 8; empty where the text is anything else.
std::vector<int> parse_node_list(const std::string& text);

}  // namespace slab
