// Mapping, NUMA placement and the accounting of page-locked memory; registering pages with the driver is the backend's.
//
// Placement is a preference, not a binding: a model larger than the node's memory shall load, slower, and not be
// killed. It goes through system calls and sysfs, so that no library is needed for it.
#include "kernels/runtime/host_memory.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <utility>

namespace slab {

namespace {

constexpr int kMostNodes = 1024;

std::string first_line(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// Reads a number off the front of the text, up to kMostNodes; -1 when there is none.
int take_number(const char*& at, const char* end) {
    int number = -1;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0 || number >= kMostNodes) return -1;
    at = rest;
    return number;
}

// Before the first touch. A system that forbids it (containers do) or has no such call places the pages as it likes.
void prefer_node(std::byte* data, size_t bytes, int node) {
    constexpr size_t word_bits = 8 * sizeof(unsigned long);
    unsigned long mask[kMostNodes / word_bits] = {};
    mask[static_cast<size_t>(node) / word_bits] = 1ul << (static_cast<size_t>(node) % word_bits);
    // The system call takes the number of bits plus one.
    (void)syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, mask, static_cast<unsigned long>(kMostNodes) + 1, 0u);
}

// A control group that limits the memory of this process: its folder, and how its version names what it counts.
struct ControlGroup {
    std::filesystem::path folder;
    bool version2;
};

// The group that the process is in and all those around it, each of which may have a limit: a container's, a batch
// job's, a service's. A container sees its own group in the place of the root, whatever path is given: the mount's root
// is among them always. Source: cgroups(7), /proc/pid/cgroup, lines "hierarchy:controllers:path".
std::vector<ControlGroup> control_groups(const std::filesystem::path& root) {
    const std::filesystem::path mount = root / "sys/fs/cgroup";
    std::vector<ControlGroup> groups = {{mount, true}, {mount / "memory", false}};
    std::ifstream file(root / "proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const bool version2 = line.starts_with("0::");
        if (!version2 && controllers.find(",memory,") == std::string::npos) continue;
        std::filesystem::path folder = version2 ? mount : mount / "memory";
        // Where both versions are mounted, version 2 has no memory controller here, and its files are not there.
        for (const std::filesystem::path& name : std::filesystem::path(line.substr(second + 1)).relative_path()) {
            if (name == "..") break;  // a group outside of what is mounted here
            groups.push_back({folder /= name, version2});
        }
    }
    return groups;
}

// What the group may still take; SIZE_MAX where it has no limit. Pages of files that it counts as used are given back
// on demand.
size_t free_bytes_of(const ControlGroup& group) {
    const bool v2 = group.version2;
    size_t limit_bytes = 0, used_bytes = 0, file_bytes = 0, value = 0;
    std::ifstream limit(group.folder / (v2 ? "memory.max" : "memory.limit_in_bytes"));
    std::ifstream usage(group.folder / (v2 ? "memory.current" : "memory.usage_in_bytes"));
    std::ifstream stat(group.folder / "memory.stat");
    if (!(limit >> limit_bytes) || !(usage >> used_bytes)) return SIZE_MAX;  // no such group, or "max": no limit
    for (std::string name; stat >> name >> value;)
        if (name == (v2 ? "file" : "total_cache")) file_bytes = value;
    used_bytes -= std::min(used_bytes, file_bytes);
    return limit_bytes - std::min(limit_bytes, used_bytes);
}

}  // namespace

HostMemory::HostMemory(size_t bytes, int numa_node, const std::string& what) {
    if (bytes == 0) return;
    const size_t available_bytes = available_host_bytes();
    void* memory = MAP_FAILED;
    if (bytes <= available_bytes)
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw DeviceError("out of host memory: '" + what + "' needs " + std::to_string(bytes) + " bytes, " +
                          std::to_string(available_bytes) +
                          " are available. Hint: free memory, or lift the limit (ulimit -v)");
    }
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
    (void)madvise(memory, bytes, MADV_HUGEPAGE);  // where the system has none, small pages do
    if (numa_node >= 0 && numa_node < kMostNodes) prefer_node(data_, bytes, numa_node);
}

HostMemory::~HostMemory() {
    unlock();
    unmap_pages(data_, bytes_);
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      locked_by_(std::exchange(other.locked_by_, nullptr)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
    HostMemory taken(std::move(other));  // leaves with what this held, also when other is this
    std::swap(data_, taken.data_);
    std::swap(bytes_, taken.bytes_);
    std::swap(locked_by_, taken.locked_by_);
    return *this;
}

void HostMemory::lock(Device& device, const std::string& what) {
    assert(!locked());
    lock_pages(device, data_, bytes_, what);
    locked_by_ = &device;
}

void HostMemory::unlock() {
    if (locked()) unlock_pages(*std::exchange(locked_by_, nullptr), data_, bytes_);
}

std::byte* HostMemory::release() {
    assert(!locked());
    bytes_ = 0;
    return std::exchange(data_, nullptr);
}

void unmap_pages(std::byte* data, size_t bytes) {
    if (data != nullptr) munmap(data, bytes);
}

void LockedRanges::add(const std::byte* first, size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_[first] = bytes;
}

void LockedRanges::remove(const std::byte* first) {
    const std::lock_guard lock(mutex_);
    bytes_.erase(first);
}

size_t LockedRanges::copyable_bytes(const std::byte* first, size_t bytes) const {
    const std::lock_guard lock(mutex_);
    auto range = bytes_.upper_bound(first);
    if (range == bytes_.begin()) return bytes;
    --range;
    const auto offset_bytes = static_cast<size_t>(first - range->first);
    if (offset_bytes >= range->second) return bytes;  // pageable
    return std::min(bytes, piece_bytes_ - offset_bytes % piece_bytes_);
}

void PinnedAccount::charge(size_t bytes, const std::string& what) {
    const size_t before_bytes = used_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    if (limit_bytes_ == 0 || (before_bytes <= limit_bytes_ && bytes <= limit_bytes_ - before_bytes)) return;
    release(bytes);
    throw PinnedLimit(pinned_limit_text(what, bytes, before_bytes,
                                        "the limit set for this run is " + std::to_string(limit_bytes_) + " bytes"));
}

std::string pinned_limit_text(const std::string& what, size_t bytes, size_t locked_bytes, const std::string& why) {
    return "page-locked host memory: '" + what + "' needs " + std::to_string(bytes) + " bytes, " +
           std::to_string(locked_bytes) + " are page-locked already and " + why +
           ". This is the limit on page-locked memory, not the GPU's memory. Hint: raise ulimit -l; in a container " +
           "--ulimit memlock=-1; WSL locks at most about half of its memory (memory= in .wslconfig)";
}

size_t available_host_bytes(const std::filesystem::path& root) {
    size_t available_bytes = SIZE_MAX;
    std::ifstream file(root / "proc/meminfo");
    for (std::string word; file >> word;) {
        size_t kibibytes = 0;
        if (word == "MemAvailable:" && file >> kibibytes) available_bytes = kibibytes * 1024;
    }
    for (const ControlGroup& group : control_groups(root))
        available_bytes = std::min(available_bytes, free_bytes_of(group));
    return available_bytes;
}

size_t free_address_bytes() {
    // In pages: all, resident, shared, code, 0, data and stack. Source: proc(5), /proc/pid/statm.
    size_t pages[6] = {};
    std::ifstream statm("/proc/self/statm");
    for (size_t& number : pages)
        if (!(statm >> number)) return SIZE_MAX;
    const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const auto rest_bytes = [&](int resource, size_t mapped_pages) {
        rlimit limit{};
        if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
        return limit.rlim_cur - std::min<size_t>(limit.rlim_cur, mapped_pages * page_bytes);
    };
    return std::min(rest_bytes(RLIMIT_AS, pages[0]), rest_bytes(RLIMIT_DATA, pages[5]));
}

int numa_node_of(const std::string& pci_bus_id, const std::filesystem::path& sysfs) {
    // Nodes without memory of their own count for nothing; where the system does not list them, all online ones do.
    std::vector<int> nodes = parse_node_list(first_line(sysfs / "devices/system/node/has_memory"));
    if (nodes.empty()) nodes = parse_node_list(first_line(sysfs / "devices/system/node/online"));
    if (nodes.size() < 2) return -1;
    std::string id = pci_bus_id;
    std::transform(id.begin(), id.end(), id.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    // Some libraries write the domain with eight digits, sysfs with four.
    if (id.find(':') == 8 && id.starts_with("0000")) id.erase(0, 4);
    const std::vector<int> node = parse_node_list(first_line(sysfs / "bus/pci/devices" / id / "numa_node"));
    if (node.size() != 1 || std::find(nodes.begin(), nodes.end(), node[0]) == nodes.end()) return -1;
    return node[0];
}

void bind_thread_to_node(int numa_node, const std::filesystem::path& sysfs) {
    if (numa_node < 0) return;
    const std::string node = "devices/system/node/node" + std::to_string(numa_node);
    cpu_set_t allowed, wanted;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    CPU_ZERO(&wanted);
    for (const int cpu : parse_node_list(first_line(sysfs / node / "cpulist")))
        if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &wanted);
    if (CPU_COUNT(&wanted) != 0)
        (void)sched_setaffinity(0, sizeof wanted, &wanted);  // a hint: a refusal costs speed alone
}

std::vector<int> parse_node_list(const std::string& text) {
    std::vector<int> nodes;
    const char* at = text.data();
    const char* const end = at + text.size();
    while (at != end) {
        const int first = take_number(at, end);
        int last = first;
        if (at != end && *at == '-') last = take_number(++at, end);
        if (first < 0 || last < first) return {};
        for (int node = first; node <= last; ++node) nodes.push_back(node);
        if (at == end) break;
        if (*at++ != ',' || at == end) return {};
    }
    return nodes;
}

}  // namespace slab
