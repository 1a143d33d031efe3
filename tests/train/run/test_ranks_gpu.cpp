// Ranks on GPUs: two that share one have the bits of one rank, and so have two with a GPU each, whatever carries their
// gradients. The suite `multi` runs where two GPUs are.
#if defined(SLABSTREAM_CUDA)

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/runtime/nccl_comm.h"
#include "tests/ranks.h"
#include "tests/tiny_model.h"
#include "train/run/rank_team.h"

using namespace slab;
using namespace slab::test;
using namespace slab::train;

namespace {

constexpr int kSteps = 3, kMicroBatches = 5;

// Sizes that the tensor cores' own paths take, unlike the tiny models'.
ModelConfig aligned_config() {
    ModelConfig c;
    c.L = 4, c.C = 256, c.HD = 64, c.NH = 4, c.NKV = 2, c.I = 384, c.V = 320;
    c.max_positions = 64;
    return c;
}

Outcome outcome_of(Session& session, const ModelConfig& config) {
    Outcome outcome;
    Model& model = *session.model;
    for (int step = 0; step < kSteps; ++step) {
        session.loop->enqueue(tiny_step_data(config, step, kMicroBatches), tiny_step());
        const StepResult result = session.loop->collect();
        outcome.losses.push_back(result.loss);
        outcome.grad_norms.push_back(result.grad_norm);
    }
    outcome.weights = model.trained().read_weights(model.compute());
    outcome.exp_avg = model.trained().read_exp_avg(model.compute());
    outcome.exp_avg_sq = model.trained().read_exp_avg_sq(model.compute());
    return outcome;
}

bool same(const Outcome& a, const Outcome& b) {
    return same_bits(a.losses, b.losses) && same_bits(a.grad_norms, b.grad_norms) && same_bits(a.weights, b.weights) &&
           same_bits(a.exp_avg, b.exp_avg) && same_bits(a.exp_avg_sq, b.exp_avg_sq);
}

void compare_with_one_rank(const std::vector<int>& gpus, const std::string& transport) {
    ModelSettings settings = tiny_settings(0.1f);
    settings.lora->r = 8;
    if (sizeof(real) == sizeof(float)) settings.lora->alpha = 4;  // see note_ranks() in run_plan.cpp
    for (const ModelConfig& config : {aligned_config(), tiny_config("gpt2")})
        for (const bool streams : {false, true}) {
            CAPTURE(streams);
            const TinyBase base(config);
            const ModelSettings its = streams ? streamed(settings, 1, 2, {1}) : settings;
            TinyRun one(base, its);
            const Outcome want = outcome_of(one.session, config);
            ModelSettings of_ranks = its;
            of_ranks.ranks = static_cast<int>(gpus.size());
            of_ranks.transport_bytes = check_transport(transport, gpus);
            BaseWeights weights = base.weights();
            const ModelLayout layout = make_layout(config, of_ranks);
            RankTeam team(open_devices(4, {}, gpus), layout, weights, {}, {},
                          {.gpus = gpus, .transport = transport, .give_up = {}});
            std::vector<Outcome> got(gpus.size());
            team.run([&](int rank, Session& session) { got[static_cast<size_t>(rank)] = outcome_of(session, config); });
            for (const Outcome& each : got) CHECK(same(each, want));
            for (int rank = 0; rank < team.size(); ++rank) {
                Session& session = team.session(rank);
                CHECK(session.device->memory().peak_bytes() == planned_bytes(*session.device, layout));
            }
        }
}

}  // namespace

TEST_SUITE("gpu") {
    TEST_CASE("ranks: two and four that share a GPU have the bits of one") {
        compare_with_one_rank({0, 0}, "local");
        compare_with_one_rank({0, 0, 0, 0}, "local");
    }

    TEST_CASE("ranks: NCCL with one rank connects, copies what is its own, and ends") {
        if (const std::string why = why_no_nccl(); !why.empty()) {
            MESSAGE(why);
            return;
        }
        RankGroup group(1, kLongTimeout);
        Device device;
        Stream stream(device, "compute");
        const std::unique_ptr<Comm> comm = make_nccl_comm(group, 0, device);
        comm->connect();
        const DeviceBuffer buffer(device, 512, MemoryCategory::workspace, "pieces");
        fill_async(buffer.data(), 7, 256, stream);
        const std::vector<SentPiece> mine{{buffer.data(), 256}};
        const std::vector<ReceivedPiece> theirs{{buffer.data() + 256, 256}};
        comm->exchange(mine, theirs, stream, {"pieces"});
        std::vector<std::byte> got(256);
        copy_async(got.data(), buffer.data() + 256, 256, CopyKind::device_to_host, stream);
        stream.synchronize();
        CHECK(got == std::vector<std::byte>(256, std::byte{7}));
        CHECK(device.memory().peak_bytes() >= kNcclBytes);
    }
}

TEST_SUITE("multi") {
    TEST_CASE("ranks: two with a GPU each have the bits of one, over copies and over NCCL") {
        compare_with_one_rank({0, 1}, "local");
        compare_with_one_rank({0, 1, 1}, "local");
        if (why_no_nccl().empty()) compare_with_one_rank({0, 1}, "nccl");
    }
}
#endif  // SLABSTREAM_CUDA
