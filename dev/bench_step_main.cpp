// Times one training step of a model given by its shape (random weights, no files), resident and streamed, in one run.
//
// Measured are the matrix rate at the model's shapes, the link both ways, the resident step with its operations, and
// the streamed step. The floor (offload/stream_schedule.h) is printed beside the measured times.
// Resident and streamed steps alternate, also for the floor's parts: disturbances and clocks are then equal for both.
// Resident steps one after the other are timed as well, as a trainer would run them.
// Every pair of steps is compared, and the adapters at the end. Streamed and resident agree in all bits or the run
// fails. The defaults (`make bench`) are a 30M-parameter model on the CPU and a 16-layer 4096-wide one on CUDA.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/base/command_line.h"
#include "data/base/error.h"
#include "kernels/matmul.h"
#include "kernels/philox.h"
#include "offload/stream_schedule.h"
#include "train/model/memory_plan.h"
#include "train/model/step_loop.h"
#include "train/run/options.h"
#include "train/run/session.h"
#include "train/spec/lora.h"
#include "train/spec/micro_batch.h"
#include "train/spec/model_limits.h"
#include "train/spec/text.h"

using namespace slab;
using namespace slab::train;

namespace {

constexpr bool kGpu = kBackend == Backend::cuda;

struct BenchOptions {
    int hidden = kGpu ? 4096 : 512, intermediate = kGpu ? 11008 : 1376, layers = kGpu ? 16 : 8, heads = kGpu ? 32 : 8,
        kv_heads = 0;
    int vocab = kGpu ? 32000 : 8192, sequence_len = kGpu ? 2048 : 512, micro_batch_size = kGpu ? 1 : 4, lora_r = 16;
    int steps = kGpu ? 10 : 5, warmup = 2, threads = 0;
    double link_limit_gbps = 0;
    OffloadFlags offload;
};

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

ModelConfig config_of(const BenchOptions& o) {
    if (o.hidden % o.heads != 0)
        throw data::UserError("--hidden " + std::to_string(o.hidden) + " is no multiple of --heads " +
                              std::to_string(o.heads));
    if (o.kv_heads != 0 && o.heads % o.kv_heads != 0)
        throw data::UserError("--heads " + std::to_string(o.heads) + " is no multiple of --kv-heads " +
                              std::to_string(o.kv_heads));
    if (o.hidden / o.heads % 2 != 0)
        throw data::UserError("--hidden divided by --heads is odd; rotary positions want an even head size");
    ModelConfig c;
    c.family = Family::llama;
    c.C = o.hidden, c.I = o.intermediate, c.L = o.layers, c.NH = o.heads, c.NKV = o.kv_heads ? o.kv_heads : o.heads,
    c.HD = o.hidden / o.heads;
    c.V = o.vocab, c.max_positions = o.sequence_len;
    c.tied_head = false;
    return c;
}

// The matrix products of a model: tokens at once, N outputs, K inputs, how often per step.
struct Product {
    const char* name;
    size_t rows, N, K, times;
};

// rows: of a micro-batch; head_rows: of one chunk of the head's. The last chunk is counted in full.
std::vector<Product> products_of(const ModelConfig& c, size_t rows, size_t head_rows) {
    const auto linear = [&](const char* name, Linear which) {
        const LinearShape shape = shape_of(c, which);
        return Product{name, rows, shape.N, shape.K, static_cast<size_t>(c.L)};
    };
    return {linear("qkv", Linear::qkv), linear("o", Linear::o), linear("gate, up", Linear::fc),
            linear("down", Linear::down),
            Product{"head", head_rows, static_cast<size_t>(c.V), static_cast<size_t>(c.C),
                    (rows + head_rows - 1) / head_rows}};
}

// Floating-point operations of one step: every frozen product forward and for the input's gradient, adapters, causal
// attention. Recomputation does not count.
double step_flops(const ModelConfig& c, size_t B, size_t T, size_t r) {
    const double rows = static_cast<double>(B) * T;
    double flops = 0;
    for (const auto& p : products_of(c, B * T, B * T)) flops += 4 * rows * static_cast<double>(p.N) * p.K * p.times;
    size_t features = 0;  // inputs and outputs of all adapters of a layer
    for (const LinearModule& module : linear_modules(c, 0)) features += module.in + module.out;
    flops += 6 * rows * r * c.L * static_cast<double>(features);
    flops += (2 + 5) * rows * T * static_cast<double>(query_cols(c)) * c.L;
    return flops;
}

void fill_random(DeviceBuffer& buffer, Stream& stream) {
    std::vector<real> values(buffer.bytes() / sizeof(real));
    stream.device().pool().parallel_ranges((values.size() + 3) / 4, size_t{1} << 18, [&](size_t begin, size_t end) {
        for (size_t group = begin; group < end; ++group) {
            const PhiloxOut out = philox(7, static_cast<uint32_t>(group), 0, 0, 0);
            for (size_t i = 4 * group; i < std::min(4 * group + 4, values.size()); ++i)
                values[i] = to_real(uniform01(out.v[i % 4]) - 0.5f);
        }
    });
    copy_async(buffer.data(), values.data(), values.size() * sizeof(real), CopyKind::host_to_device, stream);
    stream.synchronize();
}

// Median time of `work` over a few repetitions, by events on the stream.
template <class F>
double time_ms(Stream& stream, int repetitions, F&& work) {
    Event start(stream.device(), true), end(stream.device(), true);
    std::vector<double> times;
    for (int i = 0; i < repetitions + 1; ++i) {
        start.record(stream);
        work();
        end.record(stream);
        end.synchronize();
        if (i > 0) times.push_back(elapsed_ms(start, end));
    }
    return median(times);
}

// Floating-point operations per second over the step's own mix of products, forward and input gradient.
double measure_matrix_rate(Device& device, const std::vector<Product>& products, int repetitions) {
    Stream stream(device, "matrix rate", matmul_workspace_bytes());
    double flops = 0, ms = 0;
    std::printf("matrix products, [rows, N, K]\n");
    for (const auto& p : products) {
        const size_t rows = p.rows;
        DeviceBuffer x(device, rows * p.K * sizeof(real), MemoryCategory::workspace, "x"),
            w(device, p.N * p.K * sizeof(real), MemoryCategory::workspace, "w"),
            y(device, rows * p.N * sizeof(real), MemoryCategory::workspace, "y");
        fill_random(x, stream);
        fill_random(w, stream);
        const int N = static_cast<int>(p.N), K = static_cast<int>(p.K);
        const double forward = time_ms(stream, repetitions, [&] {
            matmul_forward(MatmulForward<real>{.y = y.as<real>(),
                                               .x = x.as<real>(),
                                               .w = w.as<real>(),
                                               .bias = nullptr,
                                               .add = nullptr,
                                               .rows = rows,
                                               .N = N,
                                               .K = K,
                                               .ld_y = p.N,
                                               .ld_x = p.K},
                           stream);
        });
        const double backward = time_ms(stream, repetitions, [&] {
            matmul_backward_input(MatmulBackwardInput<real>{.dx = x.as<real>(),
                                                            .dy = y.as<real>(),
                                                            .w = w.as<real>(),
                                                            .rows = rows,
                                                            .N = N,
                                                            .K = K,
                                                            .ld_dx = p.K,
                                                            .ld_dy = p.N},
                                  stream);
        });
        const double once = 2.0 * static_cast<double>(rows) * p.N * p.K;
        std::printf("  %-9s [%zu, %zu, %zu]  forward %8.3f ms  input gradient %8.3f ms  %7.1f GFLOP/s\n", p.name, rows,
                    p.N, p.K, forward, backward, 2 * once / (forward + backward) / 1e6);
        flops += 2 * once * p.times;
        ms += (forward + backward) * p.times;
    }
    std::printf("  in the step's mix: %.1f GFLOP/s, %.2f ms\n", flops / ms / 1e6, ms);
    return flops / (ms * 1e-3);
}

struct Link {
    double to_device_gbps, to_host_gbps;
};

Link measure_link(Device& device, size_t bytes, int repetitions) {
    Stream stream(device, "link");
    PinnedBuffer host(device, bytes, "link");
    DeviceBuffer dev(device, bytes, MemoryCategory::workspace, "link");
    const double in = time_ms(stream, repetitions,
                              [&] { copy_async(dev.data(), host.data(), bytes, CopyKind::host_to_device, stream); });
    const double out = time_ms(stream, repetitions,
                               [&] { copy_async(host.data(), dev.data(), bytes, CopyKind::device_to_host, stream); });
    return {static_cast<double>(bytes) / in / 1e6, static_cast<double>(bytes) / out / 1e6};
}

std::vector<MicroBatch> random_batch(const ModelConfig& c, const BenchOptions& o) {
    MicroBatch batch;
    batch.B = o.micro_batch_size, batch.T = o.sequence_len;
    for (uint32_t i = 0; i < static_cast<uint32_t>(batch.B) * batch.T; ++i) {
        batch.tokens.push_back(static_cast<int32_t>(philox(1, i, 0, 0, 0).v[0] % static_cast<uint32_t>(c.V)));
        batch.targets.push_back(static_cast<int32_t>(philox(1, i, 1, 0, 0).v[0] % static_cast<uint32_t>(c.V)));
    }
    return {batch};
}

// One model with its own device and memory account.
struct Bench {
    ModelLayout layout;
    std::unique_ptr<BaseWeights> weights;
    Session session;
    std::vector<double> step_ms;

    Model& model() { return *session.model; }
    StepLoop& loop() { return *session.loop; }

    static ModelLayout layout_of(Device& device, const ModelConfig& c, const BenchOptions& o, bool streamed) {
        ModelSettings s;
        s.B = o.micro_batch_size, s.T = o.sequence_len;
        s.lora = LoraSettings{.r = o.lora_r,
                              .alpha = 32,
                              .dropout = 0,
                              .rslora = false,
                              .target_modules = {"all-linear"},
                              .layers_to_transform = {}};
        OffloadFlags flags = o.offload;
        flags.layer_offloading = streamed;
        if (!streamed) flags.num_slots.clear(), flags.resident_layers.clear(), flags.num_prefetch = 1;
        if (flags.recompute.empty()) flags.recompute = "none";
        apply_offload_flags(s, flags, c.L);
        return plan_layout(device, c, s, flags);
    }

    Bench(const ModelConfig& c, const BenchOptions& o, bool streamed, double copy_delay_us) {
        std::unique_ptr<Device> device = open_device(o.threads, o.offload);
        layout = layout_of(*device, c, o, streamed);
        check_memory(*device, layout);
        weights = std::make_unique<BaseWeights>(BaseWeights::random(1, c));
        Model::Options options;
        if (copy_delay_us > 0)
            options.disturb = [copy_delay_us](Stream& stream) {
                if (stream.name() == "transfer") delay_async(static_cast<int>(copy_delay_us), stream);
            };
        const auto start = std::chrono::steady_clock::now();
        session = open_session(std::move(device), layout, *weights, options);
        std::printf("%s model ready in %.2f s\n", streamed ? "streamed" : "resident",
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        // B starts at zero. A little noise gives the products the numbers of a run under way.
        std::vector<float> adapters = model().trained().read_weights(model().compute());
        for (size_t i = 0; i < adapters.size(); ++i)
            if (adapters[i] == 0)
                adapters[i] = 0.01f * (uniform01(philox(3, static_cast<uint32_t>(i), 0, 0, 0).v[0]) - 0.5f);
        model().trained().write_weights(adapters, model().compute());
    }

    void enqueue(const std::vector<MicroBatch>& batch) {
        loop().enqueue(
            batch,
            {.adamw = {.learning_rate = 1e-5f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f, .weight_decay = 0},
             .max_grad_norm = 1});
    }
    // A step by itself: its time begins when it is enqueued.
    StepResult step(const std::vector<MicroBatch>& batch) {
        loop().restart_clock();
        enqueue(batch);
        return loop().collect();
    }
    std::vector<float> adapters() { return model().trained().read_weights(model().compute()); }
};

// A resident model and a streamed one that take the same steps in turn.
struct Pair {
    Bench resident, streamed;

    // One step of each, compared bit by bit. keep: their times are kept.
    void step(const std::vector<MicroBatch>& batch, bool keep) {
        const StepResult a = resident.step(batch), b = streamed.step(batch);
        if (a.loss != b.loss || a.grad_norm != b.grad_norm)
            throw data::UserError(format_text("streamed differs from resident: loss %.9g and %.9g, norm %.9g and %.9g",
                                              b.loss, a.loss, b.grad_norm, a.grad_norm));
        if (!keep) return;
        resident.step_ms.push_back(1e3 * a.seconds);
        streamed.step_ms.push_back(1e3 * b.seconds);
    }

    void compare_adapters() {
        const std::vector<float> a = resident.adapters(), b = streamed.adapters();
        if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0)
            throw data::UserError("the streamed run's adapters differ from the resident run's");
    }
};

// Times of the resident step's parts: medians over a few traced steps, since one slow visit would lift the floor.
// Copies at the turns overlap only with the first and the last streamed layer.
offload::PassTimes resident_parts(Pair& pair, const std::vector<MicroBatch>& batch, double step_ms) {
    constexpr int kTracedSteps = 5;
    Bench& bench = pair.resident;
    const std::vector<int>& streamed = pair.streamed.layout.ring.streamed();
    const size_t L = static_cast<size_t>(bench.layout.config.L);
    std::vector<std::vector<double>> visit_ms(2 * L);  // of each visit in its order, one entry a step
    std::vector<double> head_ms;
    for (int step = 0; step < kTracedSteps; ++step) {
        bench.model().offload().set_trace(true);
        pair.step(batch, false);
        std::vector<offload::TraceBox> visits;
        for (const auto& box : bench.model().offload().trace())
            if (box.kind == offload::TraceBox::Kind::visit) visits.push_back(box);
        bench.model().offload().set_trace(false);
        std::sort(visits.begin(), visits.end(), [](const auto& a, const auto& b) { return a.start_ms < b.start_ms; });
        if (visits.size() != 2 * L) throw std::logic_error("the trace does not hold two visits of every layer");
        for (size_t i = 0; i < 2 * L; ++i) visit_ms[i].push_back(visits[i].end_ms - visits[i].start_ms);
        head_ms.push_back(visits[L].start_ms - visits[L - 1].end_ms);
    }
    const auto forward = [&](int layer) { return median(visit_ms[static_cast<size_t>(layer)]); };
    const auto backward = [&](int layer) { return median(visit_ms[2 * L - 1 - static_cast<size_t>(layer)]); };
    offload::PassTimes t{};
    for (int l = 0; l < static_cast<int>(L); ++l) t.forward_ms += forward(l), t.backward_ms += backward(l);
    const int first = streamed.empty() ? 0 : streamed.front(),
              last = streamed.empty() ? static_cast<int>(L) - 1 : streamed.back();
    t.forward_first_ms = forward(first), t.forward_last_ms = forward(last);
    t.backward_first_ms = backward(last), t.backward_last_ms = backward(first);
    t.head_ms = median(head_ms);
    t.optimizer_ms = std::max(0.0, step_ms - t.forward_ms - t.backward_ms - t.head_ms);
    return t;
}

// Resident steps as a trainer enqueues them, each before its predecessor is done.
double consecutive_ms(Bench& bench, const std::vector<MicroBatch>& batch, int steps) {
    std::vector<double> times;
    bench.loop().restart_clock();
    bench.enqueue(batch);
    for (int i = 0; i < steps; ++i) {
        bench.enqueue(batch);
        times.push_back(1e3 * bench.loop().collect().seconds);
    }
    times.push_back(1e3 * bench.loop().collect().seconds);
    times.erase(times.begin());
    return median(times);
}

void print_profile(Bench& bench, const std::vector<MicroBatch>& batch, double alone_ms) {
    bench.model().compute().set_profiling(true);
    const double step_ms = 1e3 * bench.step(batch).seconds;
    const auto profile = bench.model().compute().profile_ms();
    bench.model().compute().set_profiling(false);
    std::vector<std::pair<std::string, double>> rows(profile.begin(), profile.end());
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    double all = 0, products = 0;
    for (const auto& [name, ms] : rows) {
        all += ms;
        if (name.starts_with("matmul")) products += ms;
    }
    std::printf("where the resident step's time goes (matrix products %.1f%%)\n", 100 * products / all);
    for (const auto& [name, ms] : rows) std::printf("  %-28s %9.3f ms  %5.1f%%\n", name.c_str(), ms, 100 * ms / all);
    std::printf("  %-28s %9.3f ms, of %.3f ms from the step's first operation to its last\n", "in all", all, step_ms);
    std::printf("  %-28s %9.3f ms; timing operations one by one adds the rest\n", "the step untimed", alone_ms);
}

void run(const BenchOptions& o) {
    const ModelConfig c = config_of(o);
    const size_t rows = static_cast<size_t>(o.micro_batch_size) * o.sequence_len;
    std::printf("%s\n", describe(c).c_str());
    double rate = 0;
    Link link{};
    double copy_delay_us = 0;
    {
        Device device({.threads = o.threads});
        std::printf("%s, %s, B %d, T %d, LoRA r %d on all linear layers\n", device.name().c_str(), kPrecision,
                    o.micro_batch_size, o.sequence_len, o.lora_r);
        const ModelLayout layout = Bench::layout_of(device, c, o, true);
        const size_t slab_bytes = layout.layer(0).slab.total_bytes();
        rate = measure_matrix_rate(device, products_of(c, rows, static_cast<size_t>(layout.head_chunk_rows)),
                                   kGpu ? 10 : 3);
        link = measure_link(device, slab_bytes, kGpu ? 10 : 5);
        std::printf("link at one slab of %s: %.1f GB/s to the device, %.1f GB/s back\n", bytes_text(slab_bytes).c_str(),
                    link.to_device_gbps, link.to_host_gbps);
        if (o.link_limit_gbps >= link.to_device_gbps)
            throw data::UserError(format_text(
                "--link-limit %g: the link itself carries %.1f GB/s, and only a slower one can be emulated; give less",
                o.link_limit_gbps, link.to_device_gbps));
        if (o.link_limit_gbps > 0) {
            copy_delay_us = static_cast<double>(slab_bytes) * 1e-3 * (1 / o.link_limit_gbps - 1 / link.to_device_gbps);
            std::printf("link emulated at %.1f GB/s: %.0f us of delay before each copy\n", o.link_limit_gbps,
                        copy_delay_us);
        }
    }
    const std::vector<MicroBatch> batch = random_batch(c, o);
    Pair pair{Bench(c, o, false, 0), Bench(c, o, true, copy_delay_us)};
    Bench &resident = pair.resident, &streamed = pair.streamed;
    for (int i = 0; i < o.warmup; ++i) pair.step(batch, false);
    streamed.model().offload().reset_stats();
    for (int i = 0; i < o.steps; ++i) pair.step(batch, true);
    const offload::OffloadStats stats = streamed.model().offload().stats();
    const double resident_ms = median(resident.step_ms), streamed_ms = median(streamed.step_ms);
    std::vector<double> ratios;
    for (int i = 0; i < o.steps; ++i) ratios.push_back(streamed.step_ms[i] / resident.step_ms[i]);

    offload::PassTimes parts = resident_parts(pair, batch, resident_ms);
    pair.compare_adapters();
    const double alone_ms = consecutive_ms(resident, batch, o.steps);
    const int N = static_cast<int>(streamed.layout.ring.streamed().size()), R = streamed.layout.ring.slots();
    const double copied_gbps = copy_delay_us > 0 ? o.link_limit_gbps : link.to_device_gbps;
    parts.copy_ms = static_cast<double>(streamed.layout.ring.slot_bytes()) / copied_gbps / 1e6;
    const double floor = offload::floor_ms(parts, N, R);
    const double flops = step_flops(c, o.micro_batch_size, o.sequence_len, o.lora_r);
    std::printf(
        "resident step %.2f ms (f %.2f x %d, head %.2f, b %.2f x %d, rest %.2f)  %s tok/s  %.1f%% of the measured "
        "matrix rate\n",
        resident_ms, parts.forward_ms / c.L, c.L, parts.head_ms, parts.backward_ms / c.L, c.L, parts.optimizer_ms,
        count_text(static_cast<uint64_t>(static_cast<double>(rows) / resident_ms * 1e3)).c_str(),
        100 * flops / (resident_ms * 1e-3) / rate);
    std::printf("resident steps one after the other %.2f ms  %s tok/s\n", alone_ms,
                count_text(static_cast<uint64_t>(static_cast<double>(rows) / alone_ms * 1e3)).c_str());
    std::printf("streamed step %.2f ms  %s tok/s  N %d, R %d, P %d  copy %.2f ms a slab%s\n", streamed_ms,
                count_text(static_cast<uint64_t>(static_cast<double>(rows) / streamed_ms * 1e3)).c_str(), N, R,
                streamed.layout.settings.num_prefetch, parts.copy_ms, copy_delay_us > 0 ? " (emulated link)" : "");
    std::printf("floor %.2f ms, streamed / floor %.3f; streamed / resident %.3f (median of interleaved pairs)\n", floor,
                streamed_ms / floor, median(ratios));
    std::printf("moved %.1f slabs a step, %s back; waiting %.1f%%\n", static_cast<double>(stats.slabs_in) / o.steps,
                bytes_text(stats.bytes_out).c_str(),
                100 * stats.wait_ms / std::accumulate(streamed.step_ms.begin(), streamed.step_ms.end(), 0.0));
    for (Bench* bench : {&resident, &streamed})
        std::printf("%s peak device memory %s, planned %s\n", bench == &resident ? "resident" : "streamed",
                    bytes_text(bench->session.device->memory().peak_bytes()).c_str(),
                    bytes_text(planned_bytes(*bench->session.device, bench->layout)).c_str());
    print_profile(resident, batch, alone_ms);
}

}  // namespace

int main(int argc, char** argv) {
    data::prepare_standard_streams();
    BenchOptions o;
    CLI::App app("Times a training step of a model of the given shape, resident and streamed.", "bench_step");
    app.option_defaults()->always_capture_default();
    app.add_option("--hidden", o.hidden, "C")->check(CLI::Range(1, kMaxHidden));
    app.add_option("--intermediate", o.intermediate, "MLP width")->check(CLI::Range(1, kMaxIntermediate));
    app.add_option("--layers", o.layers, "L")->check(CLI::Range(1, kMaxLayers));
    app.add_option("--heads", o.heads, "query heads")->check(CLI::Range(1, kMaxHeads));
    app.add_option("--kv-heads", o.kv_heads, "key/value heads; 0: as many as heads")->check(CLI::Range(0, kMaxHeads));
    app.add_option("--vocab", o.vocab, "V")->check(CLI::Range(2, kMaxVocabulary));
    app.add_option("--sequence-len", o.sequence_len, "T")->check(CLI::Range(1, kMaxSequenceLen));
    app.add_option("--micro-batch-size", o.micro_batch_size, "B")->check(CLI::Range(1, kMaxMicroBatchSize));
    app.add_option("--lora-r", o.lora_r, "LoRA rank, on all linear layers")->check(CLI::Range(1, kMaxLoraRank));
    app.add_option("--steps", o.steps, "timed pairs of steps")->check(CLI::Range(1, 10000));
    app.add_option("--warmup", o.warmup, "pairs before them")->check(CLI::Range(1, 1000));
    app.add_option("--threads", o.threads, "CPU threads; 0: all cores")->check(CLI::Range(0, 1024));
    app.add_option("--link-limit", o.link_limit_gbps, "emulate a link of this many GB/s by delaying copies")
        ->check(CLI::NonNegativeNumber);
    add_offload_flags(app, o.offload);
    if (const auto code = data::parse_command_line(app, argc, argv, std::cout, std::cerr)) return *code;
    try {
        run(o);
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "bench_step: " << error.what() << "\n";
        return 1;
    }
}
