// Ranks end with drained streams, and sessions are destroyed only when all have ended: nobody frees what others read.
#include "train/run/rank_team.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "data/base/display.h"
#include "data/base/error.h"
#include "kernels/runtime/host_memory.h"
#include "kernels/runtime/local_comm.h"
#include "kernels/runtime/nccl_comm.h"
#include "train/run/fault_point.h"
#include "train/run/flag_table.h"

namespace slab::train {

namespace {

// Waits for work that may have failed; the failure is on its way already.
void drain(Session& session) noexcept {
    for (Stream* stream : {&session.model->compute(), &session.model->transfer()}) {
        try {
            stream->synchronize();
        } catch (const std::exception&) {
            // The first failure says more.
        }
    }
}

[[noreturn]] void end_process(const std::string& text) {
    std::cout << std::flush;
    std::fprintf(stderr, "train_gpt: %s\n", text.c_str());
    std::_Exit(1);  // a thread hangs: nothing may be destroyed
}

// Throws the cause again, its text after `name`, unless it names a rank itself.
[[noreturn]] void rethrow(const RankFailure& failure, const std::string& name) {
    if (failure.why.starts_with("rank ")) std::rethrow_exception(failure.cause);
    try {
        std::rethrow_exception(failure.cause);
    } catch (const PeerFailed&) {
        throw DeviceError(name + " " + failure.why);  // "rank 2 (GPU 2) has been at ..."
    } catch (const data::UserError& error) {
        throw data::UserError(name + ": " + error.what());
    } catch (const data::IoError& error) {
        throw data::IoError(name + ": " + error.what());
    } catch (const DeviceError& error) {
        throw DeviceError(name + ": " + error.what());
    } catch (const std::logic_error& error) {
        throw std::logic_error(name + ": " + error.what());
    } catch (const std::exception& error) {
        throw std::runtime_error(name + ": " + error.what());
    }
}

std::string devices_here(int count) {
    std::string text = "0";
    for (int i = 1; i < count; ++i) text += "," + std::to_string(i);
    return text;
}

}  // namespace

std::vector<int> parse_gpus(const std::string& text) {
    if (text.empty()) return {0};
    const std::string subject = "--gpus " + data::quote(text);
    const bool cpu = kBackend == Backend::cpu;
    const int here = device_count();
    const bool list = text.find(',') != std::string::npos;
    std::vector<int> numbers;
    if (text == "all") {
        numbers = {std::max(here, 1)};
    } else {
        std::stringstream in(text);
        for (std::string item; std::getline(in, item, ',');) {
            if (item.empty() || item.size() > 4 || item.find_first_not_of("0123456789") != std::string::npos)
                refuse_flag(subject, "", "a number of GPUs, all, or a list of them (0,1,3)");
            numbers.push_back(std::stoi(item));
        }
        if (numbers.empty() || text.back() == ',')
            refuse_flag(subject, "", "a number of GPUs, all, or a list of them (0,1,3)");
    }
    const int ranks = list ? static_cast<int>(numbers.size()) : numbers[0];
    if (ranks < 1 || ranks > kMostRanks)
        refuse_flag(subject, "asks for " + std::to_string(ranks) + " ranks", "1 to " + std::to_string(kMostRanks));
    if (cpu && !list) return std::vector<int>(static_cast<size_t>(ranks), 0);
    const int beyond = list ? *std::max_element(numbers.begin(), numbers.end()) : ranks - 1;
    if (beyond >= here)
        refuse_flag(
            subject,
            cpu ? "this build runs on the CPU, which is device 0"
                : "GPU " + std::to_string(beyond) + " is not here; " + data::counted(here, "GPU") + " can be used",
            cpu ? "a number of ranks, or 0,0" : "GPUs of " + devices_here(here),
            cpu ? "" : "check CUDA_VISIBLE_DEVICES; a GPU may be named twice (0,0), and its ranks share it");
    if (list) return numbers;
    std::vector<int> gpus;
    for (int i = 0; i < ranks; ++i) gpus.push_back(i);
    return gpus;
}

std::vector<std::unique_ptr<Device>> open_devices(int threads, const OffloadFlags& flags,
                                                  const std::vector<int>& gpus) {
    const int all = threads != 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const int each = std::max(1, all / static_cast<int>(gpus.size()));
    std::vector<std::unique_ptr<Device>> devices;
    for (const int gpu : gpus) {
        const int sharing = static_cast<int>(std::count(gpus.begin(), gpus.end(), gpu));
        // On a GPU the first rank loads for all, and then the threads have little to do.
        const bool loads_alone = kBackend == Backend::cuda && devices.empty();
        devices.push_back(open_device(gpus.size() == 1 ? threads : loads_alone ? all : each, flags, gpu, sharing));
    }
    for (const auto& device : devices)
        for (const auto& peer : devices)
            if (device != peer) reach_peer(*device, *peer);
    return devices;
}

size_t check_transport(const std::string& transport, const std::vector<int>& gpus) {
    if (transport != "nccl" || gpus.size() < 2) return 0;
    if (const std::string why = why_no_nccl(); !why.empty()) refuse_flag("--transport nccl", why, "");
    const char* const several = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    for (const int gpu : gpus)
        if (std::count(gpus.begin(), gpus.end(), gpu) > 1 && (several == nullptr || std::string(several) != "1"))
            refuse_flag("--transport nccl",
                        "takes one rank on each GPU, and GPU " + std::to_string(gpu) + " has several",
                        "--transport local");
    return kNcclBytes;
}

RankTeam::RankTeam(std::vector<std::unique_ptr<Device>> devices, const ModelLayout& layout, BaseWeights& weights,
                   const Model::Options& options, const std::filesystem::path& adapter_in, TeamSettings settings)
    : settings_(std::move(settings)),
      group_(std::make_unique<RankGroup>(static_cast<int>(devices.size()), settings_.timeout)) {
    group_->at_sign_of_life = fault_point_of_environment();
    const bool nccl = check_transport(settings_.transport, settings_.gpus) != 0;
    for (size_t r = 0; r < devices.size(); ++r) {
        const int rank = static_cast<int>(r);
        comms_.push_back(nccl ? make_nccl_comm(*group_, rank, *devices[r])
                              : std::make_unique<LocalComm>(*group_, rank, *devices[r]));
    }
    try {
        for (size_t rank = 0; rank < devices.size(); ++rank) {
            Model::Options its = options;
            if (rank > 0) {
                its.leader = sessions_.front().model.get();
                its.progress = nullptr;
            }
            sessions_.push_back(open_session(std::move(devices[rank]), layout, weights, its,
                                             rank == 0 ? adapter_in : std::filesystem::path(), comms_[rank].get()));
        }
    } catch (...) {
        close();
        throw;
    }
}

RankTeam::~RankTeam() {
    close();
}

// The first rank's device counts the shared slabs, so it goes last.
void RankTeam::close() {
    comms_.clear();
    while (!sessions_.empty()) sessions_.pop_back();
}

void RankTeam::share_trained() {
    sessions_.front().model->compute().synchronize();
    for (size_t rank = 1; rank < sessions_.size(); ++rank) {
        Model& model = *sessions_[rank].model;
        model.trained().copy_from(sessions_.front().model->trained(), model.compute());
        model.compute().synchronize();
    }
}

std::string RankTeam::name_of(int rank) const {
    const std::string text = "rank " + std::to_string(rank);
    return kBackend == Backend::cpu
               ? text
               : text + " (GPU " + std::to_string(settings_.gpus.at(static_cast<size_t>(rank))) + ")";
}

void RankTeam::work_on(int rank, const std::function<void(int, Session&)>& work) noexcept {
    Session& its = session(rank);
    try {
        bind_thread_to_node(its.device->numa_node());
        comm(rank).connect();
        work(rank, its);
    } catch (...) {
        group_->fail(rank, std::current_exception());
    }
    drain(its);
    group_->leave(rank);
}

void RankTeam::run(const std::function<void(int, Session&)>& work) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kLook{50};
    std::mutex mutex;
    std::condition_variable ended;
    int running = size();
    std::vector<bool> has_ended(static_cast<size_t>(size()), false);
    std::vector<std::thread> threads;
    const auto note_end = [&](int rank) {
        const std::lock_guard lock(mutex);
        --running;
        has_ended[static_cast<size_t>(rank)] = true;
        ended.notify_all();
    };
    for (int rank = 0; rank < size(); ++rank) {
        group_->alive(rank, {"the start"});
        try {
            threads.emplace_back([&, rank] {
                work_on(rank, work);
                note_end(rank);
            });
        } catch (const std::system_error& error) {
            group_->fail(
                rank, std::make_exception_ptr(DeviceError("its thread could not be started: " + error.code().message() +
                                                          ". Hint: lift the limit (ulimit -u, -v, -d)")));
            note_end(rank);
        }
    }
    std::optional<Clock::time_point> failed_at;
    for (;;) {
        group_->look_for_missing();
        const std::optional<RankFailure> failure = group_->failure();
        bool hangs_alone = false;  // the rank that was given up is the only one left
        {
            std::unique_lock lock(mutex);
            if (ended.wait_for(lock, kLook, [&] { return running == 0; })) break;
            hangs_alone = failure && running == 1 && !has_ended[static_cast<size_t>(failure->rank)];
        }
        if (!failure) continue;
        if (!failed_at) {
            failed_at = Clock::now();
            for (const auto& each : comms_) each->abort();
        }
        if (!hangs_alone && Clock::now() - *failed_at < settings_.grace) continue;
        std::string text = "unknown failure";
        try {
            rethrow(*failure, name_of(failure->rank));
        } catch (const std::exception& error) {
            text = error.what();
        }
        (settings_.give_up ? settings_.give_up : end_process)(text);
        std::abort();  // give_up does not return
    }
    for (std::thread& thread : threads) thread.join();
    if (const std::optional<RankFailure> failure = group_->failure()) rethrow(*failure, name_of(failure->rank));
}

}  // namespace slab::train
