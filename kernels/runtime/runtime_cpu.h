// What the CPU backend keeps behind a Device, a Stream and an Event. For runtime.cpp and runtime_cpu.cpp alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "kernels/runtime/runtime_cpu_queue.h"
#include "kernels/runtime/runtime_state.h"

namespace slab {

struct Device::State : DeviceState {
    explicit State(const DeviceOptions& options);
};

// A worker thread and its queue.
struct Stream::State {
    State(Device& on_device, std::string its_name, size_t workspace_bytes);
    ~State();

    void synchronize();
    void push_work(const char* op, std::function<void(ThreadPool&)> work);
    void fold_profile() {}  // the worker adds to it as it goes

    Device& device;
    const std::string name;
    DeviceBuffer workspace;  // charged as on CUDA, so that one plan holds for both; CPU kernels do not use it
    cpu::Queue queue;
    // The worker's; others look only after a synchronize.
    bool profiling = false;
    std::map<std::string, double> profile_ms;
    std::shared_ptr<cpu::Failure> failure;

  private:
    void run();
    void execute(cpu::Item& item);

    std::thread worker_;
};

struct Event::State {
    State(Device&, bool is_timed) : timed(is_timed) {}

    const bool timed;
    cpu::ProgressRef progress;              // of the latest record's stream
    const Stream::State* stream = nullptr;  // whose it is
    uint32_t version = 0;                   // of the latest record
};

}  // namespace slab
