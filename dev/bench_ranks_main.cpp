// Times steps on several ranks beside steps on one, for a model given by its shape (random weights, no files).
//
// Measured are the step with the same work for each rank, the exchange of gradients in a round, and the links alone and
// together. Losses, norms and adapters must have the bits of one rank that takes all micro-batches, or the program
// fails. Ranks that share a GPU can at best take as long as one rank takes for all of their work.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/base/command_line.h"
#include "data/base/error.h"
#include "kernels/philox.h"
#include "train/model/link_rate.h"
#include "train/model/rank_sums.h"
#include "train/run/rank_team.h"
#include "train/run/session.h"
#include "train/spec/micro_batch.h"

using namespace slab;
using namespace slab::train;

namespace {

constexpr bool kGpu = kBackend == Backend::cuda;

struct BenchOptions {
    int hidden = kGpu ? 4096 : 256, intermediate = kGpu ? 11008 : 688, layers = kGpu ? 16 : 4, heads = kGpu ? 32 : 8;
    int vocab = kGpu ? 32000 : 2048, sequence_len = kGpu ? 2048 : 320, micro_batch_size = 1, lora_r = 16;
    int rounds = 1, steps = kGpu ? 10 : 4, threads = 0;
    std::string gpus = "2", transport = "auto";
    OffloadFlags offload;
};

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

ModelConfig config_of(const BenchOptions& o) {
    if (o.heads < 1 || o.hidden % o.heads != 0 || o.hidden / o.heads % 2 != 0)
        throw data::UserError("--hidden divided by --heads must be an even number");
    ModelConfig c;
    c.family = Family::llama;
    c.C = o.hidden, c.I = o.intermediate, c.L = o.layers, c.NH = c.NKV = o.heads, c.HD = o.hidden / o.heads;
    c.V = o.vocab, c.max_positions = o.sequence_len;
    c.tied_head = false;
    return c;
}

ModelSettings settings_of(const BenchOptions& o, int L, size_t ranks) {
    ModelSettings s;
    s.B = o.micro_batch_size, s.T = o.sequence_len;
    s.ranks = static_cast<int>(ranks);
    s.transport_bytes = ranks > 1 ? check_transport(o.transport, parse_gpus(o.gpus)) : 0;
    s.lora = LoraSettings{.r = o.lora_r,
                          .alpha = 32,
                          .dropout = 0,
                          .rslora = false,
                          .target_modules = {"all-linear"},
                          .layers_to_transform = {}};
    apply_offload_flags(s, o.offload, L);
    return s;
}

std::vector<MicroBatch> batches_of(const ModelConfig& c, const BenchOptions& o, size_t count) {
    std::vector<MicroBatch> batches(count);
    uint32_t at = 0;
    for (MicroBatch& batch : batches) {
        batch.B = o.micro_batch_size, batch.T = o.sequence_len;
        batch.first_sample = static_cast<uint64_t>(&batch - batches.data()) * static_cast<uint64_t>(batch.B);
        for (int i = 0; i < batch.B * batch.T; ++i, ++at) {
            batch.tokens.push_back(static_cast<int32_t>(philox(1, at, 0, 0, 0).v[0] % static_cast<uint32_t>(c.V)));
            batch.targets.push_back(static_cast<int32_t>(philox(1, at, 1, 0, 0).v[0] % static_cast<uint32_t>(c.V)));
        }
    }
    return batches;
}

struct Result {
    std::vector<double> losses, norms, ms;
    std::vector<float> adapters;
};

Result take_steps(Session& session, const std::vector<MicroBatch>& batches, int steps) {
    constexpr int kWarmUp = 2;
    const StepSettings settings{
        .adamw = {.learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f, .weight_decay = 0},
        .max_grad_norm = 1};
    Result r;
    for (int step = 0; step < steps + kWarmUp; ++step) {
        session.loop->enqueue(batches, settings);
        if (session.loop->pending() < 2) continue;
        const StepResult result = session.loop->collect();
        r.losses.push_back(result.loss), r.norms.push_back(result.grad_norm), r.ms.push_back(1e3 * result.seconds);
    }
    const StepResult last = session.loop->collect();
    r.losses.push_back(last.loss), r.norms.push_back(last.grad_norm), r.ms.push_back(1e3 * last.seconds);
    r.ms.erase(r.ms.begin(), r.ms.begin() + kWarmUp);
    r.adapters = session.model->trained().read_weights(session.model->compute());
    return r;
}

// One rank that takes these micro-batches a step.
Result one_rank(const BenchOptions& o, const ModelConfig& c, int gpu, size_t micro_batches) {
    std::unique_ptr<Device> device = open_device(o.threads, o.offload, gpu);
    const ModelLayout layout = plan_layout(*device, c, settings_of(o, c.L, 1), o.offload);
    check_memory(*device, layout);
    BaseWeights weights = BaseWeights::random(1, c);
    Session session = open_session(std::move(device), layout, weights);
    return take_steps(session, batches_of(c, o, micro_batches), o.steps);
}

// The time of a round's exchange and sums, on the device, with all ranks giving.
double exchange_ms(Session& session, Comm& comm) {
    constexpr int kRepetitions = 11;
    Stream& stream = session.model->compute();
    RankSums sums(*session.model, comm);
    Event begin(*session.device, true), end(*session.device, true);
    std::vector<double> ms;
    for (int i = 0; i < kRepetitions; ++i) {
        sums.begin_step();
        stream.synchronize();
        comm.meet({}, {"before an exchange", i});
        begin.record(stream);
        sums.end_round(static_cast<uint64_t>(comm.size()));
        end.record(stream);
        end.synchronize();
        ms.push_back(elapsed_ms(begin, end));
    }
    return median(ms);
}

void compare(const Result& got, const Result& want) {
    if (got.losses != want.losses || got.norms != want.norms)
        throw data::UserError("losses or norms differ from one rank's");
    if (std::memcmp(got.adapters.data(), want.adapters.data(), want.adapters.size() * sizeof(float)) != 0)
        throw data::UserError("adapters differ from one rank's");
}

int run(const BenchOptions& o) {
    const ModelConfig c = config_of(o);
    const std::vector<int> gpus = parse_gpus(o.gpus);
    const size_t N = gpus.size(), rounds = static_cast<size_t>(o.rounds);
    const Result alone = one_rank(o, c, gpus[0], rounds);
    const Result all = one_rank(o, c, gpus[0], rounds * N);
    std::printf("one rank: step %.2f ms with %zu micro-batches, %.2f ms with %zu\n", median(alone.ms), rounds,
                median(all.ms), rounds * N);

    std::vector<std::unique_ptr<Device>> devices = open_devices(o.threads, o.offload, gpus);
    const ModelLayout layout = plan_layout(*devices[0], c, settings_of(o, c.L, N), o.offload);
    check_memory(*devices[0], layout);
    BaseWeights weights = BaseWeights::random(1, c);
    RankTeam team(std::move(devices), layout, weights, {}, {}, {.gpus = gpus, .transport = o.transport, .give_up = {}});
    const std::vector<MicroBatch> batches = batches_of(c, o, rounds * N);
    std::vector<Result> results(N);
    std::vector<double> round_ms(N), link_alone(N), link_together(N);
    const bool streamed = !layout.ring.streamed().empty();
    for (size_t r = 0; r < N && streamed; ++r)
        link_alone[r] = measure_link_gbps(*team.session(static_cast<int>(r)).model);
    team.run([&](int rank, Session& session) {
        const size_t r = static_cast<size_t>(rank);
        Comm& comm = team.comm(rank);
        if (streamed) {
            comm.meet({}, {"links together"});
            link_together[r] = measure_link_gbps(*session.model);
        }
        results[r] = take_steps(session, batches, o.steps);
        comm.meet({}, {"steps taken"});
        round_ms[r] = exchange_ms(session, comm);
    });
    for (const Result& result : results) compare(result, all);
    const double step_ms = median(results[0].ms),
                 gradients_mb = static_cast<double>(layout.trained.total_elems()) * 4e-6;
    std::printf("%zu ranks: step %.2f ms with %zu micro-batches, %.3f of one rank's time for its share, %.3f for all\n",
                N, step_ms, rounds * N, step_ms / median(alone.ms), step_ms / median(all.ms));
    std::printf("round_ms %.3f for %.1f MB of gradients\n", *std::max_element(round_ms.begin(), round_ms.end()),
                gradients_mb);
    for (size_t r = 0; r < N && streamed; ++r)
        std::printf("link of rank %zu: %.1f GB/s alone, %.1f together\n", r, link_alone[r], link_together[r]);
    for (int rank = 0; rank < team.size(); ++rank) {
        Device& device = *team.session(rank).device;
        if (device.memory().peak_bytes() != planned_bytes(device, layout))
            throw data::UserError("rank " + std::to_string(rank) + ": its peak is not its plan");
    }
    std::printf("bits of one rank, peak as planned on each\n");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    data::prepare_standard_streams();
    CLI::App app("Times steps on several ranks beside steps on one.", "bench_ranks");
    app.option_defaults()->always_capture_default();
    BenchOptions o;
    app.add_option("--hidden", o.hidden, "width C");
    app.add_option("--intermediate", o.intermediate, "MLP width I");
    app.add_option("--layers", o.layers, "layers L");
    app.add_option("--heads", o.heads, "attention heads NH");
    app.add_option("--vocab", o.vocab, "vocabulary V");
    app.add_option("--sequence-len", o.sequence_len, "tokens a row T");
    app.add_option("--micro-batch-size", o.micro_batch_size, "rows a micro-batch B");
    app.add_option("--lora-r", o.lora_r, "LoRA rank");
    app.add_option("--rounds", o.rounds, "micro-batches of each rank in a step")->check(CLI::PositiveNumber);
    app.add_option("--steps", o.steps, "timed steps")->check(CLI::PositiveNumber);
    app.add_option("--threads", o.threads, "CPU threads; 0: all cores");
    app.add_option("--gpus", o.gpus, "as train_gpt's");
    app.add_option("--transport", o.transport, "as train_gpt's");
    add_offload_flags(app, o.offload);
    if (const auto code = data::parse_command_line(app, argc, argv, std::cout, std::cerr)) return *code;
    try {
        return run(o);
    } catch (const std::exception& error) {
        std::cerr << "bench_ranks: " << error.what() << "\n";
        return 1;
    }
}
