// Host memory: exact, locked after it is filled, refused with words; and the choice of a NUMA node, on made-up
// machines.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/runtime/host_memory.h"
#include "tests/temporary_files.h"

using namespace slab;
namespace fs = std::filesystem;

namespace {

#if defined(SLABSTREAM_CUDA)
#define HOST_MEMORY_SUITE "gpu"
#else
#define HOST_MEMORY_SUITE "cpu"
#endif

bool all_bytes_are(const HostMemory& memory, std::byte value) {
    for (size_t i = 0; i < memory.bytes(); ++i)
        if (memory.data()[i] != value) return false;
    return true;
}

// The part of /sys that the choice reads.
struct Machine {
    test::FreshDirectory root;

    void file(const fs::path& path, const std::string& text) const {
        fs::create_directories((root.path / path).parent_path());
        std::ofstream(root.path / path) << text;
    }
    void nodes(const std::string& online) const { file("devices/system/node/online", online + "\n"); }
    void device(const std::string& id, const std::string& node) const {
        file("bus/pci/devices/" + id + "/numa_node", node + "\n");
    }
    int node_of(const std::string& id) const { return numa_node_of(id, root.path); }
};

}  // namespace

TEST_SUITE(HOST_MEMORY_SUITE) {
    TEST_CASE("host memory: zero, filled, locked, unlocked, moved") {
        Device device({.threads = 1});
        constexpr size_t bytes = 5'000'001;
        HostMemory memory(bytes, -1, "slab");
        CHECK(memory.bytes() == bytes);
        CHECK(!memory.locked());
        CHECK(all_bytes_are(memory, std::byte{0}));
        std::memset(memory.data(), 7, bytes);
        memory.lock(device, "slab");
        CHECK(memory.locked());
        CHECK(device.host_pinned_bytes() == bytes);
        HostMemory moved = std::move(memory);
        CHECK(memory.data() == nullptr);
        CHECK(!memory.locked());
        CHECK(device.host_pinned_bytes() == bytes);
        moved.unlock();
        moved.unlock();
        CHECK(device.host_pinned_bytes() == 0);
        CHECK(all_bytes_are(moved, std::byte{7}));
        moved.lock(device, "slab");
        HostMemory other(1000, -1, "other");
        other.lock(device, "other");
        CHECK(device.host_pinned_bytes() == bytes + 1000);
        other = std::move(moved);
        CHECK(device.host_pinned_bytes() == bytes);
        CHECK(all_bytes_are(other, std::byte{7}));
        other = {};
        CHECK(device.host_pinned_bytes() == 0);
    }

    TEST_CASE("host memory: every node that a caller may name gives memory") {
        for (int node : {-1, 0, 1, 1023, 1024, 1 << 30}) {
            HostMemory memory(1 << 16, node, "slab");
            std::memset(memory.data(), 3, memory.bytes());
            CHECK(all_bytes_are(memory, std::byte{3}));
        }
    }

    TEST_CASE("host memory: a refusal to lock says whose limit it is and how to raise it, and changes nothing") {
        Device device({.threads = 1, .pinned_limit_bytes = 100'000});
        HostMemory first(60'000, -1, "first"), second(40'001, -1, "second");
        std::memset(second.data(), 9, second.bytes());
        first.lock(device, "slab of layer 0");
        const std::string text = test::error_of<PinnedLimit>([&] { second.lock(device, "slab of layer 1"); });
        for (const char* part : {"slab of layer 1", "40001 bytes", "60000 are page-locked", "100000 bytes", "ulimit -l",
                                 "WSL", "not the GPU's memory"})
            CHECK_MESSAGE(test::has(text, part), part << " in: " << text);
        CHECK(!second.locked());
        CHECK(all_bytes_are(second, std::byte{9}));
        CHECK(device.host_pinned_bytes() == 60'000);
        CHECK(!test::error_of<PinnedLimit>([&] { PinnedBuffer(device, 40'001, "buffer"); }).empty());
        CHECK_THROWS_AS(PinnedBuffer(device, SIZE_MAX / 2, "buffer"), DeviceError);  // no memory at all
        CHECK(device.host_pinned_bytes() == 60'000);
        { PinnedBuffer fits(device, 40'000, "buffer"); }
        first.unlock();
        CHECK(test::error_of<PinnedLimit>([&] { second.lock(device, "slab of layer 1"); }).empty());
    }

    TEST_CASE("host memory: a copy is cut where pieces of a locked range meet, whichever device locked it") {
        LockedRanges ranges(100);
        std::byte memory[1000];
        CHECK(ranges.copyable_bytes(memory, 1000) == 1000);  // pageable
        ranges.add(memory + 50, 250);                        // pieces of 100, 100 and 50
        ranges.add(memory + 500, 100);
        CHECK(ranges.copyable_bytes(memory + 50, 250) == 100);
        CHECK(ranges.copyable_bytes(memory + 149, 151) == 1);
        CHECK(ranges.copyable_bytes(memory + 150, 30) == 30);
        CHECK(ranges.copyable_bytes(memory + 250, 50) == 50);
        CHECK(ranges.copyable_bytes(memory, 50) == 50);
        CHECK(ranges.copyable_bytes(memory + 300, 200) == 200);  // past the first range
        CHECK(ranges.copyable_bytes(memory + 510, 90) == 90);
        ranges.remove(memory + 50);
        CHECK(ranges.copyable_bytes(memory + 50, 250) == 250);
        CHECK(ranges.copyable_bytes(memory + 510, 95) == 90);
    }

    TEST_CASE("host memory: more than the machine has is an error that names it") {
        const std::string what = "slab of layer 3";
        CHECK_THROWS_WITH_AS(HostMemory(size_t{1} << 55, -1, what), doctest::Contains("slab of layer 3"), DeviceError);
    }

    TEST_CASE("host memory: what is available is the least that the system and a container's limit leave") {
        constexpr size_t kMiB = size_t{1} << 20;
        const Machine bare, v2, v1, unlimited;
        for (const Machine* machine : {&bare, &v2, &v1, &unlimited})
            machine->file("proc/meminfo", "MemTotal: 8192 kB\nMemFree: 100 kB\nMemAvailable: 4096 kB\n");
        CHECK(available_host_bytes(bare.root.path) == 4 * kMiB);
        v2.file("sys/fs/cgroup/memory.max", "3145728\n");
        v2.file("sys/fs/cgroup/memory.current", "2097152\n");
        v2.file("sys/fs/cgroup/memory.stat", "anon 1048576\nfile 1048576\n");  // pages of files are given back
        CHECK(available_host_bytes(v2.root.path) == 2 * kMiB);
        v2.file("sys/fs/cgroup/memory.current", "9999999\n");  // over the limit for a moment
        CHECK(available_host_bytes(v2.root.path) == 0);
        v1.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n");
        v1.file("sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
        CHECK(available_host_bytes(v1.root.path) == kMiB);
        unlimited.file("sys/fs/cgroup/memory.max", "max\n");
        unlimited.file("sys/fs/cgroup/memory.current", "1048576\n");
        CHECK(available_host_bytes(unlimited.root.path) == 4 * kMiB);
        CHECK(available_host_bytes(bare.root.path / "nowhere") == SIZE_MAX);
    }

    TEST_CASE("host memory: a limit on the group that the process is in holds, and one on any group around it") {
        constexpr size_t kMiB = size_t{1} << 20;
        const auto give = [](const Machine& machine, const std::string& group, size_t limit_mib, size_t used_mib) {
            const bool v1 = group == "memory" || group.starts_with("memory/");
            const std::string folder = "sys/fs/cgroup/" + group;
            machine.file(folder + (v1 ? "/memory.limit_in_bytes" : "/memory.max"), std::to_string(limit_mib * kMiB));
            machine.file(folder + (v1 ? "/memory.usage_in_bytes" : "/memory.current"), std::to_string(used_mib * kMiB));
        };
        const std::string v1 = "12:pids:/x\n4:cpu,memory:/slurm/job_7/step_0\n1:name=systemd:/other\n0::/\n";
        const std::string v2 = "0::/system.slice/run 1.service\n";
        struct Case {
            std::string self, group;
            size_t limit_mib, available_mib;
        };
        for (const Case& c : std::vector<Case>{{v1, "memory/slurm/job_7/step_0", 400, 390},
                                               {v1, "memory/slurm/job_7", 300, 290},
                                               {v1, "memory", 500, 490},
                                               {v1, "memory/x", 100, 4096},      // of another controller
                                               {v1, "memory/other", 100, 4096},  // of none
                                               {v1, "memory/slurm/job_8", 100, 4096},
                                               {v1, "slurm/job_7", 100, 4096},
                                               {v2, "system.slice/run 1.service", 400, 390},
                                               {v2, "system.slice", 300, 290},
                                               {v2, "run 1.service", 100, 4096},
                                               {v1 + v2, "system.slice", 300, 290},
                                               {"0::/../../out/in\n", "out", 100, 4096},
                                               {"nonsense\n:\n4:memory\n", "memory", 200, 190},
                                               // A container without a namespace for groups sees its own as the root.
                                               {"4:memory:/docker/0123\n", "memory", 200, 190},
                                               {"", "memory", 200, 190}}) {
            CAPTURE(c.self);
            CAPTURE(c.group);
            const Machine machine;
            machine.file("proc/meminfo", "MemAvailable: 4194304 kB\n");
            machine.file("proc/self/cgroup", c.self);
            give(machine, c.group, c.limit_mib, 10);
            CHECK(available_host_bytes(machine.root.path) / kMiB == c.available_mib);
        }
        const Machine nested;  // the least of all
        nested.file("proc/self/cgroup", v1);
        give(nested, "memory", 900, 100);
        give(nested, "memory/slurm", 600, 90);
        give(nested, "memory/slurm/job_7", 200, 80);
        give(nested, "memory/slurm/job_7/step_0", 700, 70);
        CHECK(available_host_bytes(nested.root.path) == 120 * kMiB);
    }

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which map as they like
    TEST_CASE("host memory: limits on address space and on data say what is left") {
        constexpr size_t kGiB = size_t{1} << 30;
        for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
            rlimit before{};
            getrlimit(resource, &before);
            rlimit limit = before;
            limit.rlim_cur = 64 * kGiB;
            setrlimit(resource, &limit);
            const size_t some = free_address_bytes();
            const HostMemory memory(kGiB, -1, "slab");
            const size_t less = free_address_bytes();
            setrlimit(resource, &before);
            CHECK(some < 64 * kGiB);
            CHECK(some - less >= kGiB);
            CHECK(some - less < kGiB + kGiB / 2);
        }
    }
#endif

    TEST_CASE("host memory: the node next to the GPU") {
        CHECK(parse_node_list("0") == std::vector<int>{0});
        CHECK(parse_node_list("0-3,8") == std::vector<int>{0, 1, 2, 3, 8});
        CHECK(parse_node_list("2,5-5") == std::vector<int>{2, 5});
        for (const char* text : {"", "-1", "0-", "3-1", "0,", ",1", "1 2", "x", "0-99999", "0x1", "1-2-3"})
            CHECK_MESSAGE(parse_node_list(text).empty(), text);

        const Machine two;
        two.nodes("0-1");
        two.device("0000:1b:00.0", "0");
        two.device("0000:9b:00.0", "1");
        two.device("0000:aa:00.0", "-1");
        two.device("0000:ab:00.0", "7");
        two.device("0000:ac:00.0", "1 0");
        CHECK(two.node_of("0000:1B:00.0") == 0);
        CHECK(two.node_of("0000:9B:00.0") == 1);
        CHECK(two.node_of("00000000:9B:00.0") == 1);
        CHECK(two.node_of("0000:AA:00.0") == -1);  // the firmware does not say
        CHECK(two.node_of("0000:AB:00.0") == -1);  // no such node
        CHECK(two.node_of("0000:AC:00.0") == -1);
        CHECK(two.node_of("0000:FF:00.0") == -1);  // no such device
        CHECK(two.node_of("") == -1);

        two.file("devices/system/node/has_memory", "0,2\n");  // node 1 has processors only
        CHECK(two.node_of("0000:9b:00.0") == -1);
        CHECK(two.node_of("0000:1b:00.0") == 0);

        const Machine one;
        one.nodes("0");
        one.device("0000:1b:00.0", "0");
        CHECK(one.node_of("0000:1b:00.0") == -1);
        CHECK(numa_node_of("0000:1b:00.0", one.root.path / "nothing here") == -1);
    }
}
