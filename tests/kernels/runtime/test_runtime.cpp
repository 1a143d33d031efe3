// The runtime's contract: order, events, errors, accounting. No test measures time. To show that the host runs ahead or
// that a stream waits, a test holds the stream with a gate that it opens itself.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "tests/temporary_files.h"

using namespace slab;
using slab::test::error_of;
using slab::test::has;

// The contract is the same for both backends, and so are these tests.
#if defined(SLABSTREAM_CUDA)
#define RUNTIME_SUITE "gpu"
#else
#define RUNTIME_SUITE "cpu"
#endif

namespace {

// Holds a stream until open() is called.
class Gate {
  public:
    explicit Gate(Stream& stream) {
        stream.host_function("gate", [opened = opened_.get_future().share()] { opened.wait(); });
    }
    ~Gate() {
        if (!open_) open();
    }
    void open() {
        open_ = true;
        opened_.set_value();
    }

  private:
    std::promise<void> opened_;
    bool open_ = false;
};

}  // namespace

TEST_SUITE(RUNTIME_SUITE) {
    TEST_CASE("runtime: work of one stream runs in order while the host runs ahead") {
        Device device;
        Stream stream(device, "compute");
        std::vector<int> seen;  // written by the stream alone
        Gate gate(stream);
        std::atomic<int> ran{0};
        for (int i = 0; i < 1000; ++i) {
            stream.host_function("push", [&, i] {
                seen.push_back(i);
                ++ran;
            });
        }
        CHECK(ran == 0);  // all of it is enqueued, none has run
        gate.open();
        stream.synchronize();
        std::vector<int> wanted(1000);
        std::iota(wanted.begin(), wanted.end(), 0);
        CHECK(seen == wanted);
    }

    TEST_CASE("runtime: a stream that waits sees what was written before the record") {
        Device device;
        Stream writer(device, "transfer"), reader(device, "compute");
        Event ready(device), free(device);
        const int rounds = 200;
        PinnedBuffer source(device, rounds * sizeof(int), "source");
        DeviceBuffer slot(device, sizeof(int), MemoryCategory::ring, "slot");
        DeviceBuffer sums(device, rounds * sizeof(int), MemoryCategory::workspace, "sums");
        PinnedBuffer result(device, rounds * sizeof(int), "result");
        for (int i = 0; i < rounds; ++i) source.as<int>()[i] = 7 * i;
        for (int i = 0; i < rounds; ++i) {
            if (i > 0) writer.wait(free);
            if (i % 7 == 0) delay_async(300, writer);
            copy_async(slot.data(), source.as<int>() + i, sizeof(int), CopyKind::host_to_device, writer);
            ready.record(writer);
            reader.wait(ready);
            if (i % 5 == 0) delay_async(300, reader);
            copy_async(sums.as<int>() + i, slot.data(), sizeof(int), CopyKind::device_to_device, reader);
            free.record(reader);
        }
        copy_async(result.data(), sums.data(), rounds * sizeof(int), CopyKind::device_to_host, reader);
        reader.synchronize();
        writer.synchronize();
        for (int i = 0; i < rounds; ++i) REQUIRE(result.as<int>()[i] == 7 * i);
    }

    TEST_CASE("runtime: wait captures the latest record of that moment") {
        Device device;
        Stream recorder(device, "recorder"), waiter(device, "waiter");
        Event event(device);
        event.record(recorder);
        recorder.synchronize();
        waiter.wait(event);  // of the first record, which is reached
        Gate gate(recorder);
        event.record(recorder);  // not before the gate opens
        CHECK_FALSE(event.complete());
        waiter.synchronize();  // would hang if it waited for the second record
        gate.open();
        event.synchronize();
        CHECK(event.complete());
    }

#if !defined(SLABSTREAM_CUDA)
    // Not on CUDA, which may run the host functions of all streams, and so both gates, in one thread.
    TEST_CASE("runtime: a record by another stream is not satisfied by the first stream's") {
        Device device;
        Stream first(device, "first"), second(device, "second"), waiter(device, "waiter");
        Event event(device);
        Gate hold_first(first), hold_second(second);
        std::atomic<bool> ran{false};
        event.record(first);
        event.record(second);
        waiter.wait(event);
        waiter.host_function("mark", [&] { ran = true; });
        hold_first.open();
        first.synchronize();
        CHECK_FALSE(ran);
        CHECK_FALSE(event.complete());
        hold_second.open();
        waiter.synchronize();
        CHECK(ran);
    }

    TEST_CASE("runtime: waiting for an event never recorded is a protocol error") {
        Device device;
        Stream stream(device, "compute");
        Event event(device);
        CHECK_THROWS_AS(stream.wait(event), std::logic_error);
        CHECK(has(error_of<std::exception>([&] { stream.wait(event); }), "compute"));
        CHECK_FALSE(event.recorded());
        CHECK(event.complete());
        event.synchronize();  // nothing to wait for
    }
#endif

    TEST_CASE("runtime: an error surfaces with the operation's name and skips what follows") {
        Device device;
        Stream failing(device, "failing"), other(device, "other");
        Event before(device), after(device);
        before.record(failing);
        std::atomic<bool> ran{false}, other_ran{false};
        failing.host_function("divide", [] { throw std::runtime_error("by zero"); });
        failing.host_function("next", [&] { ran = true; });
        after.record(failing);
        other.wait(after);  // an event of a failed stream still comes, and brings the failure along
        other.host_function("mark", [&] { other_ran = true; });
        CHECK(has(error_of<std::exception>([&] { other.synchronize(); }), "divide"));
        CHECK_FALSE(other_ran);
        if (kBackend == Backend::cpu) before.synchronize();  // was recorded before the error; CUDA does not tell
        for (const std::string& text : {error_of<DeviceError>([&] { after.synchronize(); }),
                                        error_of<DeviceError>([&] { failing.synchronize(); })}) {
            CHECK(has(text, "divide"));
            CHECK(has(text, "by zero"));
            CHECK(has(text, "failing"));
        }
        CHECK_FALSE(ran);
        CHECK(has(error_of<std::exception>([&] { failing.synchronize(); }), "divide"));  // stays failed
        failing.host_function("later", [&] { ran = true; });
        CHECK_THROWS(failing.synchronize());
        CHECK_FALSE(ran);
    }

    TEST_CASE("runtime: only the first error counts, and what is not a std::exception is one too") {
        Device device;
        Stream stream(device, "compute");
        stream.host_function("first", [] { throw 5; });
        stream.host_function("second", [] { throw std::runtime_error("not reached"); });
        CHECK(has(error_of<std::exception>([&] { stream.synchronize(); }), "first"));
        CHECK_FALSE(has(error_of<std::exception>([&] { stream.synchronize(); }), "second"));
    }

    TEST_CASE("runtime: streams, events and buffers move, and clean up in any order") {
        Device device;
        std::atomic<int> ran{0};
        {
            Stream a(device, "a"), b(device, "b");
            auto event = std::make_unique<Event>(device);
            Gate gate(a);
            event->record(a);
            b.wait(*event);
            event.reset();  // while a record and a wait are pending
            b.host_function("count", [&] { ++ran; });
            Stream moved(std::move(b));
            CHECK(moved.name() == "b");
            moved.host_function("count", [&] { ++ran; });
            gate.open();
            moved = std::move(a);  // lets b's thread finish its work first
            CHECK(ran == 2);
            CHECK(moved.name() == "a");
            moved.host_function("count", [&] { ++ran; });
        }
        CHECK(ran == 3);

        MemoryAccount& memory = device.memory();
        const size_t before_bytes = memory.used_bytes();
        {
            DeviceBuffer x(device, 1000, MemoryCategory::ring, "x"), y(device, 500, MemoryCategory::logits, "y");
            std::byte* const data = x.data();
            CHECK(reinterpret_cast<uintptr_t>(data) % 256 == 0);
            DeviceBuffer z(std::move(x));
            CHECK(z.data() == data);
            CHECK(x.data() == nullptr);
            CHECK(x.bytes() == 0);
            y = std::move(z);  // frees the 500 bytes now
            CHECK(memory.used_bytes(MemoryCategory::logits) == 0);
            CHECK(memory.used_bytes() == before_bytes + 1000);
            CHECK(y.data() == data);
            DeviceBuffer& itself = y;
            y = std::move(itself);
            CHECK(y.data() == data);
            CHECK(y.bytes() == 1000);
        }
        CHECK(memory.used_bytes() == before_bytes);
        {
            PinnedBuffer p(device, 12345, "p");
            CHECK(reinterpret_cast<uintptr_t>(p.data()) % 256 == 0);
            CHECK(device.host_pinned_bytes() == 12345);
            std::memset(p.data(), 1, p.bytes());
            p = PinnedBuffer(device, 77, "q");
            CHECK(device.host_pinned_bytes() == 77);
        }
        CHECK(device.host_pinned_bytes() == 0);
    }

    TEST_CASE("runtime: what the device is seen to hold covers what was allocated") {
        Device device({.index = 0, .threads = 1});
        const size_t bytes = size_t{64} << 20, before_bytes = device.measured_memory().bytes;
        const DeviceBuffer buffer(device, bytes, MemoryCategory::workspace, "buffer");
        const MeasuredMemory measured = device.measured_memory();
        CHECK(measured.bytes >= bytes);
        if (measured.of_process) CHECK(measured.bytes >= before_bytes + bytes);
        if (kBackend == Backend::cpu) CHECK(measured.bytes == device.memory().used_bytes());
    }

    TEST_CASE("runtime: memory is charged by category, and a refusal leaves nothing allocated") {
        // Budgets count what the driver takes, which differs between GPUs.
        const size_t budget_bytes = Device({.index = 0, .threads = 1}).memory().reserved_bytes() + (size_t{1} << 29);
        Device device({.index = 0, .threads = 1, .budget_bytes = budget_bytes});
        MemoryAccount& memory = device.memory();
        const size_t start_bytes = memory.used_bytes();
        CHECK(start_bytes == memory.reserved_bytes());
        CHECK(memory.budget_bytes() == budget_bytes);
        DeviceBuffer ring(device, 3001, MemoryCategory::ring, "slot 0");
        { DeviceBuffer logits(device, 500, MemoryCategory::logits, "logits"); }
        CHECK(memory.used_bytes() == start_bytes + 3001);
        CHECK(memory.peak_bytes() == start_bytes + 3501);
        CHECK(memory.used_bytes(MemoryCategory::ring) == 3001);
        CHECK(memory.used_bytes(MemoryCategory::logits) == 0);
        CHECK(memory.peak_bytes(MemoryCategory::logits) == 500);
        const auto too_much = [&] {
            DeviceBuffer(device, size_t{1} << 30, MemoryCategory::optimizer, "moments of q_proj");
        };
        CHECK_THROWS_AS(too_much(), OutOfBudget);
        const std::string text = error_of<std::exception>(too_much);
        CHECK(has(text, "moments of q_proj"));
        CHECK(has(text, "optimizer"));
        CHECK(has(text, std::to_string(size_t{1} << 30)));
        CHECK(has(text, std::to_string(budget_bytes - memory.used_bytes())));                       // what is left
        CHECK_THROWS_AS(DeviceBuffer(device, SIZE_MAX, MemoryCategory::ring, "all"), OutOfBudget);  // no overflow
        CHECK(memory.used_bytes() == start_bytes + 3001);
        CHECK(memory.peak_bytes() == start_bytes + 3501);
        memory.reset_peaks();
        CHECK(memory.peak_bytes() == start_bytes + 3001);
        CHECK(memory.peak_bytes(MemoryCategory::logits) == 0);
        {
            DeviceBuffer empty(device, 0, MemoryCategory::ring, "empty");
            CHECK(empty.bytes() == 0);
        }
        {
            Stream stream(device, "compute", 4096);
            CHECK(memory.used_bytes(MemoryCategory::workspace) == 4096);
        }
        CHECK(memory.used_bytes(MemoryCategory::workspace) == 0);
        CHECK_THROWS_AS(Stream(device, "compute", size_t{1} << 40), OutOfBudget);
    }

    TEST_CASE("runtime: memory the machine does not have is an error that names it, not a crash") {
        Device device({.index = 0, .threads = 1, .budget_bytes = SIZE_MAX});
        const size_t before_bytes = device.memory().used_bytes();
        const size_t absurd_bytes = size_t{1} << 55;
        const std::string on_device =
            error_of<DeviceError>([&] { DeviceBuffer(device, absurd_bytes, MemoryCategory::ring, "ring of 9 slots"); });
        CHECK(has(on_device, "ring of 9 slots"));
        CHECK(has(on_device, std::to_string(absurd_bytes)));
        CHECK(device.memory().used_bytes() == before_bytes);
        const std::string on_host =
            error_of<DeviceError>([&] { PinnedBuffer(device, absurd_bytes, "slab of layer 3"); });
        CHECK(has(on_host, "slab of layer 3"));
        CHECK(has(on_host, std::to_string(absurd_bytes)));
        CHECK(device.host_pinned_bytes() == 0);
        CHECK_THROWS_AS(PinnedBuffer(device, SIZE_MAX - 3, "overflow"), DeviceError);
    }

#if !defined(SLABSTREAM_CUDA)
    TEST_CASE("runtime: device memory that nobody wrote reads as NaN") {
        Device device;
        DeviceBuffer buffer(device, 64 * sizeof(float), MemoryCategory::activations, "x");
        for (int i = 0; i < 64; ++i) REQUIRE(std::isnan(buffer.as<float>()[i]));
    }

    TEST_CASE("runtime: operations run on the pool, and the profile counts them by name") {
        Device device({.index = 0, .threads = 3, .budget_bytes = 0});
        Stream stream(device, "compute");
        std::vector<int> x(999, 0);
        stream.enqueue("before", [](ThreadPool&) {});
        stream.set_profiling(true);
        for (int round = 0; round < 3; ++round) {
            stream.enqueue("increment",
                           [&x](ThreadPool& pool) { pool.parallel_for(x.size(), [&](size_t i) { ++x[i]; }); });
        }
        delay_async(100, stream);
        const auto profile = stream.profile_ms();
        CHECK(profile.size() == 2);
        CHECK(profile.count("increment") == 1);
        CHECK(profile.at("delay") > 0);
        stream.set_profiling(false);
        stream.enqueue("unseen", [](ThreadPool&) {});
        CHECK(stream.profile_ms().count("unseen") == 0);
        CHECK(x == std::vector<int>(999, 3));
        CHECK(device.name() == "CPU, 3 threads");
    }

    TEST_CASE("runtime: a device that is not there is refused") {
        CHECK(has(error_of<std::invalid_argument>([] { Device({.index = 1, .threads = 1, .budget_bytes = 0}); }),
                  "device 1"));
        CHECK_THROWS_AS(ThreadPool(-1), std::invalid_argument);
        CHECK_THROWS_AS(ThreadPool(100000), std::invalid_argument);
    }
#endif

    TEST_CASE("runtime: traffic is counted per direction when it is enqueued") {
        Device device;
        Stream stream(device, "transfer");
        PinnedBuffer host(device, 4096, "host");
        DeviceBuffer there(device, 4096, MemoryCategory::ring, "there");
        Gate gate(stream);
        fill_async(there.data(), 0x5A, 4096, stream);
        copy_async(host.data(), there.data(), 1000, CopyKind::device_to_host, stream);
        copy_async(there.data(), host.data(), 300, CopyKind::host_to_device, stream);
        copy_async(there.data() + 1024, there.data(), 512, CopyKind::device_to_device, stream);
        copy_async(there.data(), host.data(), 0, CopyKind::host_to_device, stream);
        CHECK(device.traffic().device_to_host_bytes == 1000);
        CHECK(device.traffic().host_to_device_bytes == 300);
        gate.open();
        device.synchronize();
        for (int i = 0; i < 1000; ++i) REQUIRE(host.as<unsigned char>()[i] == 0x5A);
    }

    TEST_CASE("runtime: timed events measure what lies between them") {
        Device device;
        Stream stream(device, "compute");
        Event start(device, true), end(device, true), plain(device);
        CHECK_THROWS_AS(elapsed_ms(start, end), std::logic_error);  // never recorded
        start.record(stream);
        delay_async(2000, stream);
        end.record(stream);
        plain.record(stream);
        stream.synchronize();
        CHECK(elapsed_ms(start, end) >= 1.9f);  // a lower bound: a delay may last longer, never much shorter
        CHECK(elapsed_ms(end, start) <= -1.9f);
        CHECK_THROWS_AS(elapsed_ms(start, plain), std::logic_error);
    }

    TEST_CASE("runtime: several host threads may each drive their streams") {
        Device device;
        std::atomic<int> sum{0};
        std::vector<std::thread> hosts;
        for (int h = 0; h < 4; ++h) {
            hosts.emplace_back([&] {
                Stream a(device, "a"), b(device, "b");
                Event event(device);
                for (int i = 0; i < 50; ++i) {
                    a.host_function("add", [&] { ++sum; });
                    event.record(a);
                    b.wait(event);
                    b.host_function("add", [&] { ++sum; });
                    event.record(b);
                    a.wait(event);
                }
                b.synchronize();
            });
        }
        for (std::thread& host : hosts) host.join();
        CHECK(sum == 4 * 50 * 2);
    }
}
