// Chrome's trace event format: complete events ("ph": "X"), times in microseconds, a lane of compute and one of copies.
#include "train/run/trace_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "data/base/atomic_file.h"
#include "data/base/error.h"
#include "data/base/input_file.h"
#include "train/run/run_log.h"
#include "train/run/side_file.h"

namespace slab::train {

using nlohmann::json;

namespace {

// A trace's keys, without its events, which come last. Null if there is no file, or an empty one.
json head_of_trace(const std::filesystem::path& file) {
    if (!std::filesystem::exists(file)) return nullptr;
    const auto refuse = [&](const std::string& why) {
        throw data::UserError(
            {.subject = "--trace " + why + ", and would be overwritten", .hint = "name another file"});
    };
    if (!std::filesystem::is_regular_file(file)) refuse(file.string() + ": is no trace");
    std::string start;
    try {
        const data::InputFile in(file);
        start.resize(std::min(in.size_bytes(), size_t{1} << 16));  // far beyond any path that stands before the events
        in.read(0, start.data(), start.size(), "beginning");
    } catch (const std::runtime_error& error) {
        refuse(error.what());
    }
    if (start.empty()) return nullptr;
    const size_t events = start.find("\"traceEvents\"");
    const json head =
        json::parse(start.substr(0, events) + (events < start.size() ? "\"traceEvents\": []}" : ""), nullptr, false);
    if (!head.is_object() || !head.contains("displayTimeUnit") || !head.contains("traceEvents"))
        refuse(file.string() + ": is no trace");
    return head;
}

}  // namespace

void write_trace(const std::filesystem::path& file, const std::string& run,
                 const std::vector<offload::LayerOffloadManager::TraceBox>& boxes) {
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
                          {"name", box.kind == Kind::copy     ? "copy " + layer
                                   : box.kind == Kind::wait   ? "wait for " + layer
                                   : box.kind == Kind::decode ? "decode " + layer
                                                              : layer},
                          {"cat", box.kind == Kind::copy     ? "copy"
                                  : box.kind == Kind::wait   ? "wait"
                                  : box.kind == Kind::decode ? "decode"
                                                             : "visit"},
                          {"ts", box.start_ms * 1e3},
                          {"dur", (box.end_ms - box.start_ms) * 1e3},
                          {"args", args}});
    }
    try {
        const json trace = {
            {"displayTimeUnit", "ms"}, {"otherData", {{"output_dir", run}}}, {"traceEvents", std::move(events)}};
        data::write_file_atomically(file, trace.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
    } catch (const std::runtime_error& error) {  // full disk or no place: a failure beside the run
        throw SideFileError(error.what());
    }
}

void check_trace_file(const std::filesystem::path& file) {
    head_of_trace(file);
}

std::string run_of_trace(const std::filesystem::path& file) {
    const json head = head_of_trace(file);
    const json data = head.is_object() ? head.value("otherData", json()) : json();
    const json run = data.is_object() ? data.value("output_dir", json()) : json();
    return run.is_string() ? run.get<std::string>() : "";
}

}  // namespace slab::train
