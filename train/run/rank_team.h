// The ranks of this process: a device, a session and a thread for each, over one host copy of the slabs.
//
// The calling thread opens sessions one after the other. The first one loads; the others copy from it. run() starts the
// threads, watches them, and names the first that failed. No wait is endless. A rank that hangs is given up after the
// time-out, and then the process ends.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/runtime/comm.h"
#include "kernels/runtime/rank_group.h"
#include "kernels/runtime/runtime.h"
#include "train/files/base_weights.h"
#include "train/model/model.h"
#include "train/model/model_layout.h"
#include "train/run/session.h"

namespace slab::train {

inline constexpr int kMostRanks = 64;

// The device of each rank from --gpus: "N", "all", or "0,1,3", which may name one several times; "" is one rank. In a
// build for the CPU all ranks are on device 0. Throws data::UserError that names what is here.
std::vector<int> parse_gpus(const std::string& text);

// The devices of these ranks. Those on one GPU share its budget; on the CPU, each gets its part of the threads.
std::vector<std::unique_ptr<Device>> open_devices(int threads, const OffloadFlags& flags, const std::vector<int>& gpus);

// Refuses a transport that this build or these GPUs cannot have, and says what to install. Returns the device memory
// that it takes of each GPU.
size_t check_transport(const std::string& transport, const std::vector<int>& gpus);

struct TeamSettings {
    std::vector<int> gpus;                      // of each rank
    std::chrono::milliseconds timeout{300000};  // --comm-timeout
    std::string transport = "auto";             // --transport
    std::chrono::milliseconds grace{10000};     // for the other ranks' end after a failure
    // What happens when a rank has not ended by then: prints the text and ends the process.
    std::function<void(const std::string&)> give_up;
};

class RankTeam {
  public:
    // layout: for settings.gpus.size() ranks. options, adapter_in: as for open_session(). Throws what that throws.
    RankTeam(std::vector<std::unique_ptr<Device>> devices, const ModelLayout& layout, BaseWeights& weights,
             const Model::Options& options, const std::filesystem::path& adapter_in, TeamSettings settings);
    ~RankTeam();
    RankTeam(const RankTeam&) = delete;
    RankTeam& operator=(const RankTeam&) = delete;

    int size() const { return static_cast<int>(sessions_.size()); }
    Session& session(int rank) { return sessions_.at(static_cast<size_t>(rank)); }
    Comm& comm(int rank) { return *comms_.at(static_cast<size_t>(rank)); }
    // Rank 0's trained tensors to all, as after a checkpoint was read. Before run() alone.
    void share_trained();

    // Runs work(rank, session) on a thread for each rank and returns when all have ended. Throws the first failure, of
    // the type that the rank threw, with "rank 2 (GPU 2): " before its text.
    void run(const std::function<void(int rank, Session& session)>& work);

  private:
    void close();
    void work_on(int rank, const std::function<void(int, Session&)>& work) noexcept;
    std::string name_of(int rank) const;

    const TeamSettings settings_;
    std::unique_ptr<RankGroup> group_;
    std::vector<std::unique_ptr<Comm>> comms_;
    std::vector<Session> sessions_;
};

}  // namespace slab::train
