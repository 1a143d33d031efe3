// Times one training step of a model given by its shape (random weights, no files), resident and streamed, in one run.
//
// Measured are the matrix rate at the model's shapes, the link both ways, the resident step with its operations, and
// the streamed step. The floor (offload/stream_schedule.h) is printed beside the measured times.
// Resident and streamed steps alternate, also for the floor's parts: disturbances and clocks are then equal for both.
// Resident steps one after the other are timed as well, as a trainer would run them.
// Every pair of steps is compared, and the adapters at the end. Streamed and resident agree in all bits or the run
// fails. With --slab-format both keep their layers in blocks. With --streamed-only there is no resident model: for
// shapes that no device holds, the floor's parts come from the streamed visits, which begin after their waits. The
// defaults (`make bench`) are a 30M-parameter model on the CPU and a 16-layer 4096-wide one on CUDA.
#include <sys/resource.h>

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
#include "train/spec/slab_format.h"
#include "train/spec/text.h"

using namespace slab;
using namespace slab::train;

namespace {

constexpr bool kGpu = kBackend == Backend::cuda;

struct BenchOptions {
    int hidden = kGpu ? 4096 : 512, intermediate = kGpu ? 11008 : 1376, layers = kGpu ? 16 : 8, heads = kGpu ? 32 : 8,
        kv_heads = 0;
    int vocab = kGpu ? 32000 : 8192, sequence_len = kGpu ? 2048 : 512, micro_batch_size = kGpu ? 1 : 4, lora_r = 16;
    int steps = kGpu ? 10 : 5, warmup = 2, threads = 0, gradient_accumulation_steps = 1;
    std::string slab_format = "bf16";
    bool streamed_only = false, repeat_layer = false;
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

// A copy on the device, bytes read and written a second.
double measure_device_copy_gbps(Device& device, size_t bytes, int repetitions) {
    Stream stream(device, "device copy");
    DeviceBuffer a(device, bytes, MemoryCategory::workspace, "device copy"),
        b(device, bytes, MemoryCategory::workspace, "device copy");
    fill_async(a.data(), 0, bytes, stream);
    const double ms = time_ms(stream, repetitions,
                              [&] { copy_async(b.data(), a.data(), bytes, CopyKind::device_to_device, stream); });
    return 2 * static_cast<double>(bytes) / ms / 1e6;
}

// The micro-batches of every step.
std::vector<MicroBatch> random_batch(const ModelConfig& c, const BenchOptions& o) {
    std::vector<MicroBatch> batches;
    for (uint32_t m = 0; m < static_cast<uint32_t>(o.gradient_accumulation_steps); ++m) {
        MicroBatch& batch = batches.emplace_back();
        batch.B = o.micro_batch_size, batch.T = o.sequence_len;
        for (uint32_t i = 0; i < static_cast<uint32_t>(batch.B) * batch.T; ++i) {
            batch.tokens.push_back(static_cast<int32_t>(philox(1, i, 0, m, 0).v[0] % static_cast<uint32_t>(c.V)));
            batch.targets.push_back(static_cast<int32_t>(philox(1, i, 1, m, 0).v[0] % static_cast<uint32_t>(c.V)));
        }
    }
    return batches;
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
        s.slab_format = slab_format_named(o.slab_format).value();
        return plan_layout(device, c, s, flags);
    }

    Bench(const ModelConfig& c, const BenchOptions& o, bool streamed, double copy_delay_us) {
        std::unique_ptr<Device> device = open_device(o.threads, o.offload);
        layout = layout_of(*device, c, o, streamed);
        check_memory(*device, layout);
        weights = std::make_unique<BaseWeights>(BaseWeights::random(1, c));
        Model::Options options;
        options.copies_of_first_layer = o.repeat_layer || o.streamed_only;
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

// A resident model, if there is one, and a streamed one that take the same steps in turn.
struct Pair {
    std::unique_ptr<Bench> resident;  // null with --streamed-only
    Bench streamed;

    // Whose visits are timed: resident ones wait for nothing.
    Bench& timed() { return resident ? *resident : streamed; }

    // One step of each, compared bit by bit. keep: their times are kept. Returns the timed one's milliseconds.
    double step(const std::vector<MicroBatch>& batch, bool keep) {
        StepResult a{};
        if (resident) a = resident->step(batch);
        const StepResult b = streamed.step(batch);
        if (resident && (a.loss != b.loss || a.grad_norm != b.grad_norm))
            throw data::UserError(format_text("streamed differs from resident: loss %.9g and %.9g, norm %.9g and %.9g",
                                              b.loss, a.loss, b.grad_norm, a.grad_norm));
        if (keep) {
            if (resident) resident->step_ms.push_back(1e3 * a.seconds);
            streamed.step_ms.push_back(1e3 * b.seconds);
        }
        return 1e3 * (resident ? a : b).seconds;
    }

    void compare_adapters() {
        if (!resident) return;
        const std::vector<float> a = resident->adapters(), b = streamed.adapters();
        if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0)
            throw data::UserError("the streamed run's adapters differ from the resident run's");
    }
};

// Times of one pass's visits, by their place in it, and of what lies between them, over some traced steps.
struct TracedSteps {
    std::vector<std::vector<double>> visit_ms;  // [2 L] of each visit in its order, one entry a pass
    std::vector<double> head_ms, decode_ms, rest_ms;

    // boxes: of one step of step_ms with `passes` micro-batches of a model with L layers.
    void add(std::vector<offload::TraceBox> boxes, size_t L, size_t passes, double step_ms) {
        using Kind = offload::TraceBox::Kind;
        std::erase_if(boxes, [](const auto& box) { return box.kind == Kind::copy; });
        std::sort(boxes.begin(), boxes.end(), [](const auto& a, const auto& b) { return a.start_ms < b.start_ms; });
        visit_ms.resize(2 * L);
        size_t visit = 0;
        double head_begin_ms = 0, in_head_ms = 0, heads_ms = 0, boxes_ms = 0;
        for (const offload::TraceBox& box : boxes) {
            const double ms = box.end_ms - box.start_ms;
            boxes_ms += ms;
            if (box.kind == Kind::decode) decode_ms.push_back(ms);
            if (box.kind != Kind::visit) {
                in_head_ms += ms;
                continue;
            }
            const size_t place = visit++ % (2 * L);
            if (place == L) {
                head_ms.push_back(box.start_ms - head_begin_ms - in_head_ms);
                heads_ms += head_ms.back();
            }
            visit_ms[place].push_back(ms);
            head_begin_ms = box.end_ms, in_head_ms = 0;
        }
        if (visit != 2 * L * passes) throw std::logic_error("the trace does not hold two visits of every layer a pass");
        rest_ms.push_back(std::max(0.0, step_ms - boxes_ms - heads_ms));
    }
};

// Times of a step's parts: medians over a few traced steps, since one slow visit would lift the floor. step_ms: of
// untraced resident steps, or 0. Copies at the turns overlap only with the first and the last streamed layer.
offload::PassTimes parts_of_step(Pair& pair, const std::vector<MicroBatch>& batch, double step_ms) {
    constexpr int kTracedSteps = 5;
    Bench& bench = pair.timed();
    const std::vector<int>& streamed = pair.streamed.layout.ring.streamed();
    const size_t L = static_cast<size_t>(bench.layout.config.L), passes = batch.size();
    TracedSteps traced;
    for (int step = 0; step < kTracedSteps; ++step) {
        bench.model().offload().set_trace(true);
        const double traced_ms = pair.step(batch, false);
        const auto boxes = bench.model().offload().trace();
        bench.model().offload().set_trace(false);
        traced.add(boxes, L, passes, traced_ms);
    }
    const auto forward = [&](int layer) { return median(traced.visit_ms[static_cast<size_t>(layer)]); };
    const auto backward = [&](int layer) { return median(traced.visit_ms[2 * L - 1 - static_cast<size_t>(layer)]); };
    offload::PassTimes t{};
    for (int l = 0; l < static_cast<int>(L); ++l) t.forward_ms += forward(l), t.backward_ms += backward(l);
    const int first = streamed.empty() ? 0 : streamed.front(),
              last = streamed.empty() ? static_cast<int>(L) - 1 : streamed.back();
    t.forward_first_ms = forward(first), t.forward_last_ms = forward(last);
    t.backward_first_ms = backward(last), t.backward_last_ms = backward(first);
    t.head_ms = median(traced.head_ms);
    if (!traced.decode_ms.empty()) {
        t.decode_ms = median(traced.decode_ms);
        t.pass_decode_ms = t.decode_ms * static_cast<double>(L);
    }
    // Each turn saves a decoding, but for the very first visit.
    const double decodings_ms = traced.decode_ms.empty() ? 0 : static_cast<double>(2 * L - 2) * t.decode_ms;
    const double pass_ms = t.forward_ms + t.backward_ms + t.head_ms + decodings_ms;
    t.optimizer_ms =
        step_ms > 0 ? std::max(0.0, step_ms - static_cast<double>(passes) * pass_ms) : median(traced.rest_ms);
    return t;
}

// The floor of a step: of its passes, the last of which the optimizer follows.
double floor_of_step(offload::PassTimes parts, size_t passes, int N, int R) {
    const double last_ms = offload::floor_ms(parts, N, R);
    parts.optimizer_ms = 0;
    return last_ms + static_cast<double>(passes - 1) * offload::floor_ms(parts, N, R);
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

struct Measured {
    double matrix_flops = 0;  // a second
    Link link{};
    double device_copy_gbps = 0;
    double copy_delay_us = 0;
};

// What the machine does by itself at the shapes of the model.
Measured measure_machine(const ModelConfig& c, const BenchOptions& o) {
    const size_t rows = static_cast<size_t>(o.micro_batch_size) * o.sequence_len;
    Measured m;
    Device device({.threads = o.threads});
    std::printf("%s, %s, B %d, T %d, LoRA r %d on all linear layers, slabs in %s\n", device.name().c_str(), kPrecision,
                o.micro_batch_size, o.sequence_len, o.lora_r, o.slab_format.c_str());
    const ModelLayout layout = Bench::layout_of(device, c, o, true);
    const size_t slab_bytes = layout.moved_slab(0).total_bytes();
    if (!o.streamed_only)
        m.matrix_flops = measure_matrix_rate(device, products_of(c, rows, static_cast<size_t>(layout.head_chunk_rows)),
                                             kGpu ? 10 : 3);
    m.link = measure_link(device, slab_bytes, kGpu ? 10 : 5);
    std::printf("link at one slab of %s: %.1f GB/s to the device, %.1f GB/s back\n", bytes_text(slab_bytes).c_str(),
                m.link.to_device_gbps, m.link.to_host_gbps);
    m.device_copy_gbps = measure_device_copy_gbps(device, layout.layer(0).slab.total_bytes(), kGpu ? 20 : 3);
    std::printf("copies on the device: %.0f GB/s read and written\n", m.device_copy_gbps);
    if (o.link_limit_gbps >= m.link.to_device_gbps)
        throw data::UserError(format_text(
            "--link-limit %g: the link itself carries %.1f GB/s, and only a slower one can be emulated; give less",
            o.link_limit_gbps, m.link.to_device_gbps));
    if (o.link_limit_gbps > 0) {
        m.copy_delay_us = static_cast<double>(slab_bytes) * 1e-3 * (1 / o.link_limit_gbps - 1 / m.link.to_device_gbps);
        std::printf("link emulated at %.1f GB/s: %.0f us of delay before each copy\n", o.link_limit_gbps,
                    m.copy_delay_us);
    }
    return m;
}

std::string rate_text(size_t tokens, double ms) {
    return count_text(static_cast<uint64_t>(static_cast<double>(tokens) / ms * 1e3));
}

void print_memory(const char* name, Bench& bench) {
    std::printf("%s peak device memory %s, planned %s\n", name,
                bytes_text(bench.session.device->memory().peak_bytes()).c_str(),
                bytes_text(planned_bytes(*bench.session.device, bench.layout)).c_str());
}

// The most host memory that the process held, page-locked slabs included.
size_t host_peak_bytes() {
    struct rusage usage = {};
    return getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<size_t>(usage.ru_maxrss) * 1024 : 0;
}

void print_resident(Pair& pair, const ModelConfig& c, const BenchOptions& o, const offload::PassTimes& parts,
                    const Measured& machine, size_t tokens, double alone_ms) {
    const double resident_ms = median(pair.resident->step_ms);
    const double flops = step_flops(c, o.micro_batch_size, o.sequence_len, o.lora_r) * o.gradient_accumulation_steps;
    std::printf(
        "resident step %.2f ms (f %.2f x %d, head %.2f, b %.2f x %d, rest %.2f)  %s tok/s  %.1f%% of the measured "
        "matrix rate\n",
        resident_ms, parts.forward_ms / c.L, c.L, parts.head_ms, parts.backward_ms / c.L, c.L, parts.optimizer_ms,
        rate_text(tokens, resident_ms).c_str(), 100 * flops / (resident_ms * 1e-3) / machine.matrix_flops);
    std::printf("resident steps one after the other %.2f ms  %s tok/s\n", alone_ms,
                rate_text(tokens, alone_ms).c_str());
}

void print_streamed(Pair& pair, const BenchOptions& o, offload::PassTimes parts, const Measured& machine,
                    const offload::OffloadStats& stats, size_t tokens) {
    Bench& streamed = pair.streamed;
    const int N = static_cast<int>(streamed.layout.ring.streamed().size()), R = streamed.layout.ring.slots();
    const double copied_gbps = machine.copy_delay_us > 0 ? o.link_limit_gbps : machine.link.to_device_gbps;
    parts.copy_ms = static_cast<double>(streamed.layout.ring.slot_bytes()) / copied_gbps / 1e6;
    const double floor = floor_of_step(parts, static_cast<size_t>(o.gradient_accumulation_steps), N, R);
    const double streamed_ms = median(streamed.step_ms);
    if (!pair.resident)
        std::printf("streamed visits f %.2f ms, b %.2f ms on average; head %.2f ms, rest %.2f ms\n",
                    parts.forward_ms / streamed.layout.config.L, parts.backward_ms / streamed.layout.config.L,
                    parts.head_ms, parts.optimizer_ms);
    if (parts.decode_ms > 0) {
        const double bytes = static_cast<double>(streamed.layout.moved_slab(0).total_bytes()) +
                             static_cast<double>(streamed.layout.work_slab_bytes);
        const double gbps = bytes / parts.decode_ms / 1e6;
        std::printf("decoding %.3f ms a layer, %.0f GB/s read and written, %.1f%% of a device copy\n", parts.decode_ms,
                    gbps, 100 * gbps / machine.device_copy_gbps);
    }
    std::printf("streamed step %.2f ms  %s tok/s  N %d, R %d, P %d  copy %.2f ms a slab%s\n", streamed_ms,
                rate_text(tokens, streamed_ms).c_str(), N, R, streamed.layout.settings.num_prefetch, parts.copy_ms,
                machine.copy_delay_us > 0 ? " (emulated link)" : "");
    std::printf("floor %.2f ms, streamed / floor %.3f", floor, streamed_ms / floor);
    if (pair.resident) {
        std::vector<double> ratios;
        for (int i = 0; i < o.steps; ++i) ratios.push_back(streamed.step_ms[i] / pair.resident->step_ms[i]);
        std::printf("; streamed / resident %.3f (median of interleaved pairs)", median(ratios));
    }
    std::printf("\nmoved %.1f slabs a step, %s back; waiting %.1f%%\n", static_cast<double>(stats.slabs_in) / o.steps,
                bytes_text(stats.bytes_out).c_str(),
                100 * stats.wait_ms / std::accumulate(streamed.step_ms.begin(), streamed.step_ms.end(), 0.0));
}

void run(const BenchOptions& o) {
    const ModelConfig c = config_of(o);
    const size_t tokens =
        static_cast<size_t>(o.micro_batch_size) * o.sequence_len * static_cast<size_t>(o.gradient_accumulation_steps);
    std::printf("%s\n", describe(c).c_str());
    const Measured machine = measure_machine(c, o);
    const std::vector<MicroBatch> batch = random_batch(c, o);
    Pair pair{o.streamed_only ? nullptr : std::make_unique<Bench>(c, o, false, 0),
              Bench(c, o, true, machine.copy_delay_us)};
    for (int i = 0; i < o.warmup; ++i) pair.step(batch, false);
    pair.streamed.model().offload().reset_stats();
    for (int i = 0; i < o.steps; ++i) pair.step(batch, true);
    const offload::OffloadStats stats = pair.streamed.model().offload().stats();
    const offload::PassTimes parts = parts_of_step(pair, batch, pair.resident ? median(pair.resident->step_ms) : 0);
    pair.compare_adapters();
    const double alone_ms = pair.resident ? consecutive_ms(*pair.resident, batch, o.steps) : 0;
    if (pair.resident) print_resident(pair, c, o, parts, machine, tokens, alone_ms);
    print_streamed(pair, o, parts, machine, stats, tokens);
    if (pair.resident) print_memory("resident", *pair.resident);
    print_memory("streamed", pair.streamed);
    std::printf("host memory at its peak %s\n", bytes_text(host_peak_bytes()).c_str());
    if (pair.resident) print_profile(*pair.resident, batch, alone_ms);
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
    app.add_option("--gradient-accumulation-steps", o.gradient_accumulation_steps, "micro-batches a step")
        ->check(CLI::Range(1, 1 << 20));
    app.add_option("--slab-format", o.slab_format, "of the frozen layers, streamed and resident")
        ->check(CLI::IsMember({"bf16", "q8_0", "nf4"}));
    app.add_flag("--streamed-only", o.streamed_only, "no resident model; implies --repeat-layer");
    app.add_flag("--repeat-layer", o.repeat_layer, "every layer is a copy of the first, which is sooner drawn");
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
