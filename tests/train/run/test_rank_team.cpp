// Ranks that train together hold what one rank holds that takes all micro-batches: the same bits, on every rank,
// streamed and resident, however many share the work. And a rank's failure ends the run with its name.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/base/error.h"
#include "tests/tiny_model.h"
#include "train/run/rank_team.h"

using namespace slab;
using namespace slab::test;
using namespace slab::train;

namespace {

constexpr int kSteps = 3, kMicroBatches = 5;

Outcome outcome_of(Session& session, const ModelConfig& config, int micro_batches) {
    Outcome outcome;
    Model& model = *session.model;
    for (int step = 0; step < kSteps; ++step) {
        session.loop->enqueue(tiny_step_data(config, step, micro_batches), tiny_step());
        const StepResult result = session.loop->collect();
        outcome.losses.push_back(result.loss);
        outcome.grad_norms.push_back(result.grad_norm);
        outcome.grads.push_back(model.trained().read_grads(model.compute()));
    }
    outcome.weights = model.trained().read_weights(model.compute());
    outcome.exp_avg = model.trained().read_exp_avg(model.compute());
    outcome.exp_avg_sq = model.trained().read_exp_avg_sq(model.compute());
    return outcome;
}

struct Team {
    BaseWeights weights;
    ModelLayout layout;
    RankTeam ranks;
    Team(const TinyBase& base, ModelSettings settings, int size, TeamSettings team = {}, int exchange_every = 1)
        : weights(base.weights()),
          layout(make_layout(base.config, with_ranks(settings, size, exchange_every))),
          ranks(devices(size), layout, weights, {}, {}, with_gpus(std::move(team), size)) {}

    static ModelSettings with_ranks(ModelSettings settings, int size, int exchange_every) {
        settings.ranks = size;
        settings.exchange_every = exchange_every;
        return settings;
    }
    static TeamSettings with_gpus(TeamSettings team, int size) {
        team.gpus.assign(static_cast<size_t>(size), 0);
        return team;
    }
    static std::vector<std::unique_ptr<Device>> devices(int size) {
        return open_devices(2, {}, std::vector<int>(static_cast<size_t>(size), 0));
    }
};

std::vector<Outcome> outcomes_of(Team& team, const ModelConfig& config, int micro_batches = kMicroBatches) {
    std::vector<Outcome> outcomes(static_cast<size_t>(team.ranks.size()));
    team.ranks.run([&](int rank, Session& session) {
        outcomes[static_cast<size_t>(rank)] = outcome_of(session, config, micro_batches);
    });
    return outcomes;
}

bool same(const Outcome& a, const Outcome& b) {
    return same_bits(a.losses, b.losses) && same_bits(a.grad_norms, b.grad_norms) && a.grads == b.grads &&
           same_bits(a.weights, b.weights) && same_bits(a.exp_avg, b.exp_avg) && same_bits(a.exp_avg_sq, b.exp_avg_sq);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("ranks: any number of them has the bits of one, on every rank, streamed and resident") {
        for (const std::string& family : tiny_families()) {
            CAPTURE(family);
            const TinyBase base(family);
            const ModelSettings resident = tiny_settings(0.2f);
            TinyRun one(base, resident);
            const Outcome want = outcome_of(one.session, base.config, kMicroBatches);
            for (const int size : {2, 3, 4, 7})
                for (const ModelSettings& settings : {resident, streamed(resident, 1, 2, {1})}) {
                    if (settings.layer_offloading && size > 3) continue;
                    CAPTURE(size);
                    CAPTURE(settings.layer_offloading);
                    Team team(base, settings, size);
                    const std::vector<Outcome> got = outcomes_of(team, base.config);
                    for (const Outcome& each : got) CHECK(same(each, want));
                    for (int rank = 0; rank < size; ++rank) {
                        Session& session = team.ranks.session(rank);
                        CHECK(session.device->memory().peak_bytes() == planned_bytes(*session.device, team.layout));
                    }
                }
        }
    }

    TEST_CASE("ranks: gradients that are added before they are exchanged have the same bits on any number of ranks") {
        const TinyBase base("qwen2", 2);
        for (const int every : {2, 3}) {
            std::vector<Outcome> outcomes;
            for (const int size : {1, 2, 3}) {
                Team team(base, tiny_settings(), size, {}, every);
                for (Outcome& each : outcomes_of(team, base.config, 7)) outcomes.push_back(std::move(each));
            }
            for (const Outcome& each : outcomes) CHECK(same(each, outcomes.front()));
        }
    }

    TEST_CASE("ranks: full training repeats its bits, and is near one rank's") {
        const TinyBase base("llama", 3);
        for (const ModelSettings& settings : {tiny_full_settings(), tiny_full_settings(2)}) {
            TinyRun one(base, settings);
            const Outcome want = outcome_of(one.session, base.config, kMicroBatches);
            Team first(base, settings, 2), second(base, settings, 2);
            const Outcome a = outcomes_of(first, base.config)[0], b = outcomes_of(second, base.config)[1];
            CHECK(same(a, b));
            for (int step = 0; step < kSteps; ++step)
                CHECK(a.losses[static_cast<size_t>(step)] ==
                      doctest::Approx(want.losses[static_cast<size_t>(step)]).epsilon(1e-5));
        }
    }

    TEST_CASE("ranks: page-locked slabs are there once, and every rank copies from them") {
        const TinyBase base("llama");
        Team team(base, streamed(tiny_settings(), 1, 2), 4);
        const size_t slab_bytes = team.ranks.session(0).model->host_slab_bytes();
        size_t locked_bytes = 0;
        for (int rank = 0; rank < 4; ++rank) {
            Session& session = team.ranks.session(rank);
            CHECK(&session.model->slabs() == &team.ranks.session(0).model->slabs());
            if (rank > 0) CHECK(session.device->host_pinned_bytes() < slab_bytes);
            locked_bytes += session.device->host_pinned_bytes() - (rank == 0 ? slab_bytes : 0);
        }
        CHECK(slab_bytes == base.config.L * team.layout.layer(0).slab.total_bytes());
        // Beside the slabs: tokens and results alone, the same for each rank.
        CHECK(locked_bytes == 4 * team.ranks.session(1).device->host_pinned_bytes());
        outcomes_of(team, base.config);
        for (int rank = 0; rank < 4; ++rank)
            CHECK(team.ranks.session(rank).device->traffic().host_to_device_bytes > slab_bytes);
    }

    TEST_CASE("ranks: an evaluation that is shared has the bits of one rank's") {
        const TinyBase base("qwen3");
        std::vector<MicroBatch> batches;
        for (unsigned i = 0; i < 7; ++i) batches.push_back(tiny_batch(base.config, {.B = 2, .T = 9}, 50 + i));
        TinyRun one(base, tiny_settings(0.1f));
        const double want = evaluate(one, batches);
        for (const int size : {2, 4, 9}) {
            Team team(base, tiny_settings(0.1f), size);
            std::vector<double> got(static_cast<size_t>(size));
            team.ranks.run([&](int rank, Session& session) {
                got[static_cast<size_t>(rank)] =
                    session.loop->evaluate(batches.size(), [&](uint64_t i) { return batches[i]; }, {}).value();
            });
            for (const double loss : got) CHECK(loss == want);
        }
    }

    TEST_CASE("ranks: one that asks to stop drops the step on all, and no weight has changed") {
        const TinyBase base("qwen2", 2);
        Team team(base, tiny_settings(), 3);
        const auto batches = tiny_step_data(base.config, 0, 6);
        std::atomic<int> dropped{0}, changed{0};
        team.ranks.run([&](int rank, Session& session) {
            Model& model = *session.model;
            const std::vector<float> before = model.trained().read_weights(model.compute());
            std::atomic<int64_t> questions{2};  // the second: before the first round
            const StepData data{.micro_batches = 6,
                                .tokens = 6,
                                .target_count = [&](uint64_t i) { return batches[i].target_count(); },
                                .batch = [&](uint64_t i) { return batches[i]; }};
            const data::StopToken stop = rank == 1 ? data::StopToken(questions) : data::StopToken();
            dropped += !session.loop->enqueue(data, tiny_step(), stop).has_value();
            changed += model.trained().read_weights(model.compute()) != before;
        });
        CHECK(dropped == 3);
        CHECK(changed == 0);
    }

    TEST_CASE("ranks: data that one cannot read is told on all, in its words") {
        const TinyBase base("qwen2", 2);
        Team team(base, tiny_settings(), 3);
        const auto batches = tiny_step_data(base.config, 0, 6);
        std::vector<std::string> errors(3);
        team.ranks.run([&](int rank, Session& session) {
            const StepData data{.micro_batches = 6,
                                .tokens = 6,
                                .target_count = [&](uint64_t i) { return batches[i].target_count(); },
                                .batch = [&](uint64_t i) -> MicroBatch {
                                    if (i == 4) throw data::IoError("train.bin: cannot be read");
                                    return batches[i];
                                }};
            try {
                session.loop->enqueue(data, tiny_step(), {});
            } catch (const DataFailed& failed) {
                errors[static_cast<size_t>(rank)] = failed.what();
            }
        });
        for (const std::string& error : errors) CHECK(error == "rank 1: train.bin: cannot be read");
    }

    TEST_CASE("ranks: weights that are no longer the same are noticed, and the odd rank is named") {
        const TinyBase base("qwen2", 2);
        Team team(base, tiny_settings(), 3);
        std::string error;
        try {
            team.ranks.run([&](int rank, Session& session) {
                Model& model = *session.model;
                for (int step = 0; step < 3; ++step) {
                    if (rank == 2 && step == 1) {
                        std::vector<float> weights = model.trained().read_weights(model.compute());
                        weights[5] += 1e-3f;
                        model.trained().write_weights(weights, model.compute());
                    }
                    session.loop->enqueue(tiny_step_data(base.config, step, 3), tiny_step());
                    session.loop->collect();
                }
            });
        } catch (const DeviceError& failed) {
            error = failed.what();
        }
        CAPTURE(error);
        CHECK(error.find("the weights of rank 2 differ from the other ranks' after step 2") != std::string::npos);
    }

    TEST_CASE("ranks: the first failure is thrown, with its type and the rank's name") {
        const TinyBase base("qwen2", 2);
        Team team(base, tiny_settings(), 3);
        const auto fails = [&](int rank, Session&) {
            for (int round = 0;; ++round) {
                if (rank == 1 && round == 2) throw data::UserError("no such thing");
                team.ranks.comm(rank).meet({}, {"round", round});
            }
        };
        CHECK_THROWS_WITH_AS(team.ranks.run(fails), doctest::Contains("rank 1"), data::UserError);
    }

    TEST_CASE("ranks: one that is silent for too long is named with its place") {
        const TinyBase base("qwen2", 2);
        Team team(base, tiny_settings(), 2, {.gpus = {}, .timeout = std::chrono::milliseconds(300), .give_up = {}});
        std::atomic<bool> noticed{false};
        std::string told;
        try {
            team.ranks.run([&](int rank, Session&) {
                Comm& comm = team.ranks.comm(rank);
                comm.meet({}, {"start"});
                if (rank == 1) {
                    comm.alive({"reading data, step", 7});
                    while (!noticed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
                try {
                    comm.meet({}, {"later"});
                } catch (const PeerFailed&) {
                    noticed = true;
                    throw;
                }
            });
        } catch (const DeviceError& failed) {
            told = failed.what();
        }
        CHECK(told.find("rank 1") == 0);
        CHECK(told.find("has been at `reading data, step 7` for 300 ms") != std::string::npos);
    }

    TEST_CASE("ranks: --gpus is a number, all, or a list, and names what is here") {
        const bool cpu = kBackend == Backend::cpu;
        CHECK(parse_gpus("") == std::vector<int>{0});
        CHECK(parse_gpus("1") == std::vector<int>{0});
        CHECK(parse_gpus("0,0") == std::vector<int>{0, 0});
        if (cpu) CHECK(parse_gpus("3") == std::vector<int>{0, 0, 0});
        CHECK(parse_gpus("all").size() == static_cast<size_t>(std::max(1, device_count())));
        for (const char* wrong : {"0", "-1", "x", "1,", ",", "1,,2", "99999", "65", "all,0", "1.5", " 2"}) {
            CAPTURE(wrong);
            CHECK_THROWS_AS(parse_gpus(wrong), data::UserError);
        }
        CHECK_THROWS_WITH_AS(parse_gpus("0,63"), doctest::Contains("--gpus"), data::UserError);
    }
}
