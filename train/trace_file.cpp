// Boxes to Chrome's trace event format (complete events, "ph": "X", times in microseconds). See trace_file.h.
#include "train/trace_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "data/atomic_file.h"
#include "train/run_log.h"

namespace slab::train {

using nlohmann::json;

void write_trace(const std::filesystem::path& file, const std::vector<offload::LayerOffloadManager::TraceBox>& boxes) {
    using Kind = offload::LayerOffloadManager::TraceBox::Kind;
    constexpr int kComputeLane = 1, kTransferLane = 2;
    json events = json::array();
    const auto name_lane = [&](int lane, const char* name) {
        events.push_back({{"ph", "M"}, {"pid", 1}, {"tid", lane}, {"name", "thread_name"}, {"args", {{"name", name}}}});
    };
    events.push_back({{"ph", "M"}, {"pid", 1}, {"name", "process_name"}, {"args", {{"name", "slabstream"}}}});
    name_lane(kComputeLane, "compute");
    name_lane(kTransferLane, "transfer");
    for (const auto& box : boxes) {
        const std::string layer = "layer " + std::to_string(box.layer);
        json args = {{"layer", box.layer}};
        if (box.step != 0) args["step"] = box.step;
        if (box.kind == Kind::copy) args["bytes"] = box.bytes;
        events.push_back({{"ph", "X"},
                          {"pid", 1},
                          {"tid", box.kind == Kind::copy ? kTransferLane : kComputeLane},
                          {"name", box.kind == Kind::copy   ? "copy " + layer
                                   : box.kind == Kind::wait ? "wait for " + layer
                                                            : layer},
                          {"cat", box.kind == Kind::copy   ? "copy"
                                  : box.kind == Kind::wait ? "wait"
                                                           : "visit"},
                          {"ts", box.start_ms * 1e3},
                          {"dur", (box.end_ms - box.start_ms) * 1e3},
                          {"args", args}});
    }
    try {
        data::write_file_atomically(file, json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump(1) + "\n");
    } catch (const std::exception& error) {
        throw SideFileError(error.what());
    }
}

void check_trace_file(const std::filesystem::path& file) {
    if (!std::filesystem::exists(file)) return;
    std::string start(64, '\0');
    if (std::filesystem::is_regular_file(file)) {
        std::ifstream in(file);
        in.read(start.data(), static_cast<std::streamsize>(start.size()));
        start.resize(static_cast<size_t>(in.gcount()));
        if (start.empty() || start.find("\"displayTimeUnit\"") != std::string::npos) return;
    }
    throw std::runtime_error("--trace " + file.string() + ": is no trace, and would be overwritten; name another file");
}

}  // namespace slab::train
