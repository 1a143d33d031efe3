// A hub name becomes a path only if it is one by the hub's rules, so that no name leads out of the cache.
#include "data/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/input_file.h"

namespace slab::data {

namespace fs = std::filesystem;

namespace {

constexpr size_t kLongestName = 96;  // the hub's limit for each half

// "org/name" or "name" of letters, digits, '-', '_' and '.', as the hub allows.
bool is_hub_name(const std::string& given) {
    const size_t slash = given.find('/');
    const auto good = [](std::string_view part) {
        return !part.empty() && part.size() <= kLongestName && part.front() != '.' && part.front() != '-' &&
               part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos &&
               std::all_of(part.begin(), part.end(),
                           [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
    };
    if (slash == std::string::npos) return good(given);
    return good(std::string_view(given).substr(0, slash)) && good(std::string_view(given).substr(slash + 1));
}

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value ? value : "";
}

fs::path from_home(const std::string& path) {
    if (path != "~" && !path.starts_with("~/")) return path;
    return fs::path(variable("HOME")) / path.substr(std::min<size_t>(2, path.size()));
}

// The commit that refs/main names.
std::string commit_of(const fs::path& ref) {
    constexpr size_t longest_bytes = 128;
    const InputFile file(ref);
    std::string commit(std::min(file.size_bytes(), longest_bytes), '\0');
    file.read(0, commit.data(), commit.size(), "commit");
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
    if (commit.empty() ||
        !std::all_of(commit.begin(), commit.end(), [](unsigned char c) { return std::isalnum(c) != 0; }))
        throw UserError({.subject = ref.string(),
                         .given = "holds " + quote(commit),
                         .wanted = "the number of a commit",
                         .hint = "the cache is damaged, fetch the model again"});
    return commit;
}

}  // namespace

fs::path hub_cache_directory() {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
        if (const auto hub = variable(name); !hub.empty()) return from_home(hub);
    if (const auto home = variable("HF_HOME"); !home.empty()) return from_home(home) / "hub";
    const auto cache = variable("XDG_CACHE_HOME");
    return from_home(cache.empty() ? "~/.cache" : cache) / "huggingface" / "hub";
}

fs::path find_model(const std::string& flag, const std::string& given) {
    if (fs::exists(given)) return given;
    const std::string what = flag + " " + given;
    if (!is_hub_name(given)) throw UserError({.subject = what, .given = "no such file or directory"});
    std::string folder = "models--" + given;
    if (const size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
    const fs::path cache = hub_cache_directory();
    const fs::path ref = cache / folder / "refs" / "main";
    const std::string remedy = "`hf download " + given + "` fetches it";
    if (!fs::exists(ref))
        throw UserError(
            {.subject = what,
             .given = "no such file or directory, and the Hugging Face cache " + cache.string() + " does not hold it",
             .hint = remedy});
    const fs::path snapshot = cache / folder / "snapshots" / commit_of(ref);
    if (!fs::is_directory(snapshot))
        throw UserError({.subject = snapshot.string(),
                         .given = "is no directory, although " + ref.string() + " names it",
                         .hint = remedy});
    return snapshot;
}

}  // namespace slab::data
