// Failures around the plugin: budgets, options, calls out of turn, sources that fail or send too little. Each is
// reported once, by name, and whatever can go on goes on with the same bits.
#if !defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/temporary_files.h"
#include "tests/toy_streaming.h"

using namespace slab;
using namespace slab::offload;
using slab::test::content;
using slab::test::FreshDirectory;
using slab::test::has;

namespace {

// What is printed on standard error while it lives.
class CapturedErrors {
  public:
    CapturedErrors() {
        std::fflush(stderr);
        const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(file, STDERR_FILENO);
        close(file);
    }
    ~CapturedErrors() {
        dup2(before_, STDERR_FILENO);
        close(before_);
    }
    std::string text() const { return content(path_); }

  private:
    FreshDirectory directory_;
    std::filesystem::path path_ = directory_.path / "stderr";
    int before_ = dup(STDERR_FILENO);
};

// Four layers of zeros; how they are copied is its heirs' to say.
struct EmptySource : SlabSource {
    std::vector<SlabLayout> layouts = toy_layouts(4);
    std::vector<std::byte> bytes = std::vector<std::byte>(1 << 20);
    int layers() const override { return 4; }
    const SlabLayout& layout(int layer) const override { return layouts[static_cast<size_t>(layer)]; }
};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("offload: a budget too small is refused, before and after, and all goes on") {
        const int L = 4;
        const Toy sizes(L);
        size_t largest = 0, all = bytes_of(sizes, {0, 1, 2, 3});
        for (int l = 0; l < L; ++l) largest = std::max(largest, sizes.store.layout(l).total_bytes());
        {
            Toy toy(L, {.resident_layers = {0}}, 2 * largest + bytes_of(sizes, {0}) - 1);
            LayerOffloadManager& m = toy.make();
            CHECK_THROWS_AS(m.attach(), OutOfBudget);
            CHECK(!m.attached());
            CHECK(toy.device.memory().peak_bytes() == 0);
            CHECK_THROWS_AS(m.begin_layer(0), std::logic_error);
        }
        {
            Toy toy(L, {}, 2 * largest + all - 1);
            LayerOffloadManager& m = toy.make();
            m.attach();
            toy.step(pass_order(L));
            const size_t used_bytes = toy.device.memory().used_bytes();
            std::string error;
            try {
                m.detach();
            } catch (const OutOfBudget& refusal) {
                error = refusal.what();
            }
            CHECK(error.find(std::to_string(all) + " bytes") != std::string::npos);
            CHECK(error.find(": 1 bytes are missing") != std::string::npos);
            CHECK(m.attached());
            CHECK(toy.device.memory().used_bytes() == used_bytes);
            CHECK(toy.device.memory().peak_bytes() == used_bytes);
            toy.step(pass_order(L));
            CHECK(m.stats().slabs_in == 2 * 4 - 2 + 2 * (4 - 2));
            CHECK(toy.right());
        }
        {
            Toy toy(L, {}, 2 * largest + all);
            LayerOffloadManager& m = toy.make();
            m.attach();
            toy.step(pass_order(L));
            m.detach();
            toy.step(pass_order(L));
            const DeviceBuffer other(toy.device, 2 * largest, MemoryCategory::activations, "someone else's");
            CHECK_THROWS_AS(m.attach(), OutOfBudget);  // no room for the ring: stays as it is
            CHECK(!m.attached());
            toy.step(pass_order(L));
            CHECK(toy.right());
        }
    }

    TEST_CASE("offload: calls out of turn are refused in every state") {
        Toy toy(3);
        LayerOffloadManager& m = toy.make();
        CHECK_THROWS_AS(m.pre_step({0}), std::logic_error);
        CHECK_THROWS_AS(m.begin_layer(0), std::logic_error);
        CHECK_THROWS_AS(m.detach(), std::logic_error);
        m.attach();
        for (int state = 0; state < 2; ++state) {  // attached, then detached
            CHECK_THROWS_AS(m.pre_step({0, 3}), std::logic_error);
            CHECK_THROWS_AS(m.begin_layer(3), std::logic_error);
            CHECK_THROWS_AS(m.end_layer(0), std::logic_error);
            CHECK_THROWS_AS(m.end_layer(-1), std::logic_error);
            m.begin_layer(1);
            CHECK_THROWS_WITH_AS(m.begin_layer(2), "begin_layer: layer 2 asked for while layer 1 is open",
                                 std::logic_error);
            CHECK_THROWS_WITH_AS(m.end_layer(2), "end_layer: layer 2 is not open, layer 1 is", std::logic_error);
            CHECK_THROWS_AS(m.pre_step({0}), std::logic_error);
            CHECK_THROWS_AS(m.post_step(), std::logic_error);
            CHECK_THROWS_AS(m.attach(), std::logic_error);
            CHECK_THROWS_AS(m.detach(), std::logic_error);
            CHECK_THROWS_AS(m.set_trace(true), std::logic_error);
            m.end_layer(1);
            if (state == 0) m.detach();
        }
        m.attach();
        CHECK_THROWS_AS(m.attach(), std::logic_error);
        toy.step(pass_order(3));
        CHECK(toy.right());
    }

    TEST_CASE("offload: a source that fails leaves a manager that serves the next visits") {
        Toy toy(4);
        LayerOffloadManager& m = toy.make();
        m.attach();
        toy.source.failing_layer = 2;
        m.pre_step(pass_order(4));
        toy.visit(0);
        CHECK_THROWS_WITH_AS(m.begin_layer(1), "the source fails", std::runtime_error);  // while prefetching 2
        toy.source.failing_layer = -1;
        toy.visit_all({1, 2, 3, 3, 2, 1, 0});
        m.post_step();
        toy.step(pass_order(4));
        CHECK(toy.right());
        m.detach();
        toy.source.failing_layer = 1;
        m.attach();
        CHECK_THROWS_AS(m.detach(), std::runtime_error);
        CHECK(m.attached());
        toy.source.failing_layer = -1;
        toy.step(pass_order(4));
        CHECK(toy.right());
    }

    TEST_CASE("offload: bytes that differ from the schedule are an error") {
        // A source that leaves the end of one slab out.
        struct Forgetful final : EmptySource {
            int forgetting = -1;
            void enqueue(int layer, std::byte* dst, Stream& transfer) override {
                const size_t all = layout(layer).total_bytes();
                copy_async(dst, bytes.data(), layer == forgetting ? all - 4 : all, CopyKind::host_to_device, transfer);
            }
        } source;
        REQUIRE(source.layout(3).total_bytes() <= source.bytes.size());
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        const RingPlan plan(slab_bytes(source.layouts), {});
        LayerOffloadManager m(source, plan, compute, transfer, device);
        m.attach();
        const auto step = [&] {
            m.pre_step(pass_order(4));
            for (int layer : pass_order(4)) {
                m.begin_layer(layer);
                m.end_layer(layer);
            }
            m.post_step();
        };
        CHECK_NOTHROW(step());
        source.forgetting = 2;
        CHECK_THROWS_AS(step(), std::logic_error);
        transfer.synchronize();
    }

    TEST_CASE("offload: a slot holds the stored bytes, the link carries the copied ones, a block reads the layout") {
        // Half of what a slot holds is copied, as when devices gather a slab; a block reads a part of it.
        struct Gathered final : EmptySource {
            size_t stored_bytes(int layer) const override { return layout(layer).total_bytes() + 512; }
            size_t copied_bytes(int layer) const override { return stored_bytes(layer) / 2 + lie; }
            void enqueue(int layer, std::byte* slot, Stream& transfer) override {
                fill_async(slot, 0x11, stored_bytes(layer), transfer);
                copy_async(slot, bytes.data(), stored_bytes(layer) / 2, CopyKind::host_to_device, transfer);
            }
            size_t lie = 0;
        } source;
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        std::vector<size_t> stored;
        size_t copied = 0;
        for (int layer = 0; layer < 4; ++layer) stored.push_back(source.stored_bytes(layer));
        for (int layer : {1, 2, 3}) copied += source.copied_bytes(layer);
        CHECK_THROWS_AS(
            LayerOffloadManager(source, RingPlan(slab_bytes(source.layouts), {}), compute, transfer, device),
            std::invalid_argument);
        const RingPlan plan(stored, {.num_slots = 3, .resident_layers = {0}});
        CHECK(plan.slot_bytes() == *std::max_element(stored.begin() + 1, stored.end()));
        LayerOffloadManager m(source, plan, compute, transfer, device);
        m.attach();
        CHECK(device.memory().used_bytes(MemoryCategory::ring) == 3 * plan.slot_bytes());
        CHECK(device.memory().used_bytes(MemoryCategory::weights_resident) == stored[0]);
        const auto step = [&] {
            m.pre_step(pass_order(4));
            for (int layer : pass_order(4)) {
                CHECK(m.begin_layer(layer).layout == &source.layout(layer));
                m.end_layer(layer);
            }
            m.post_step();
        };
        CHECK_NOTHROW(step());
        CHECK(m.stats().bytes_in == copied);  // each of the three once, into a slot of its own
        m.detach();
        CHECK(device.memory().used_bytes() == stored[0] + stored[1] + stored[2] + stored[3]);
        m.attach();
        source.lie = 1;
        CHECK_THROWS_WITH_AS(step(), doctest::Contains("the schedule says 3"), std::logic_error);
    }

    TEST_CASE("offload: what fails on the transfer stream reaches whoever waits for the compute stream") {
        // A source that needs host work, as from a disk, and fails in it: compute must not go on with what the slot
        // held.
        struct Reading final : EmptySource {
            int failing = -1;
            void enqueue(int layer, std::byte* dst, Stream& transfer) override {
                transfer.host_function("read of a slab", [fails = layer == failing] {
                    if (fails) throw std::runtime_error("the disk is gone");
                });
                copy_async(dst, bytes.data(), layout(layer).total_bytes(), CopyKind::host_to_device, transfer);
            }
        } source;
        Device device({.threads = 1});
        Stream compute(device, "compute"), transfer(device, "transfer");
        const CapturedErrors last_words;  // of the manager, which cannot know that all was reported below
        const RingPlan plan(slab_bytes(source.layouts), {});
        LayerOffloadManager m(source, plan, compute, transfer, device);
        m.attach();
        source.failing = 2;
        m.pre_step(pass_order(4));
        std::atomic<int> visited{0};
        for (int layer : pass_order(4)) {
            m.begin_layer(layer);
            compute.host_function("visit", [&visited] { ++visited; });
            m.end_layer(layer);
        }
        m.post_step();
        Event done(device);
        done.record(compute);
        CHECK_THROWS_WITH_AS(done.synchronize(), doctest::Contains("the disk is gone"), std::runtime_error);
        CHECK_THROWS_WITH_AS(compute.synchronize(), doctest::Contains("read of a slab"), std::runtime_error);
        CHECK(visited == 2);  // layers 0 and 1; nothing from the slot that the failed read was to fill
        CHECK_THROWS_AS(transfer.synchronize(), std::runtime_error);
    }

    TEST_CASE("offload: an error that nobody has seen is printed at the manager's end, another one is not") {
        for (const bool reported : {false, true}) {
            CAPTURE(reported);
            const CapturedErrors printed;
            {
                Toy toy(4);
                Stream compute(toy.device, "compute"), transfer(toy.device, "transfer");
                try {
                    LayerOffloadManager m(toy.source, toy.plan, compute, transfer, toy.device);
                    m.attach();
                    compute.host_function("visit", [] { throw std::runtime_error("a wrong number"); });
                    Event done(toy.device);
                    done.record(compute);
                    if (reported) done.synchronize();
                } catch (const std::runtime_error& error) {
                    CHECK(has(error.what(), "a wrong number"));
                }
            }
            const std::string text = printed.text();
            CHECK(has(text, "a wrong number") == !reported);
            CHECK(text.find("a wrong number") == text.rfind("a wrong number"));
        }
    }
}

#endif  // !SLABSTREAM_CUDA
