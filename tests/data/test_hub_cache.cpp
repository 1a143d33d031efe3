// Models by name: found in the cache of the hub's own tools, wherever variables put it, and never outside of it.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <map>
#include <optional>
#include <system_error>

#include "data/hub_cache.h"
#include "tests/temporary_files.h"
#include "train/files/base_config.h"
#include "train/files/model_files.h"
#include "train/run/run_setup.h"

using namespace slab::data;
using namespace slab::train;
using slab::test::error_of;
using slab::test::FreshDirectory;
using slab::test::has;
using slab::test::put;
namespace fs = std::filesystem;

namespace {

// Unsets all variables that decide, sets those given, and restores all at the end.
class Variables {
  public:
    explicit Variables(const std::map<std::string, std::string>& values) {
        for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
            const char* const now = getenv(name);
            before_[name] = now ? std::optional<std::string>(now) : std::nullopt;
            unsetenv(name);
        }
        for (const auto& [name, value] : values) setenv(name.c_str(), value.c_str(), 1);
    }
    ~Variables() {
        for (const auto& [name, value] : before_)
            value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
    }

  private:
    std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("hub cache: the directory is where the hub's own tools have it") {
        const auto with = [](const std::map<std::string, std::string>& values) {
            const Variables variables(values);
            return hub_cache_directory();
        };
        CHECK(with({{"HOME", "/home/me"}}) == "/home/me/.cache/huggingface/hub");
        CHECK(with({{"HOME", "/home/me"}, {"XDG_CACHE_HOME", "/c"}}) == "/c/huggingface/hub");
        CHECK(with({{"HOME", "/home/me"}, {"XDG_CACHE_HOME", "/c"}, {"HF_HOME", "/hf"}}) == "/hf/hub");
        CHECK(with({{"HOME", "/home/me"}, {"HF_HOME", "~/hf"}}) == "/home/me/hf/hub");
        CHECK(with({{"HOME", "/home/me"}, {"HF_HOME", "/hf"}, {"HUGGINGFACE_HUB_CACHE", "~"}}) == "/home/me/");
        CHECK(with({{"HUGGINGFACE_HUB_CACHE", "/old"}, {"HF_HUB_CACHE", "/new"}}) == "/new");
        CHECK(with({{"HF_HUB_CACHE", "/hub"}, {"HF_HOME", "/hf"}}) == "/hub");
        CHECK(with({{"HF_HUB_CACHE", ""}, {"HF_HOME", "/hf"}}) == "/hf/hub");
    }

    TEST_CASE("hub cache: a name is looked up there, a path never") {
        const FreshDirectory dir;
        const Variables variables({{"HF_HUB_CACHE", dir.path.string()}});
        const auto add = [&](const std::string& folder, const std::string& commit, const std::string& ref) {
            fs::create_directories(dir.path / folder / "snapshots" / commit);
            fs::create_directories(dir.path / folder / "refs");
            put(dir.path / folder / "refs" / "main", ref);
            return dir.path / folder / "snapshots" / commit;
        };
        CHECK(find_model("--base-model", "org/Model-1.5_b") == add("models--org--Model-1.5_b", "0a1b2c", "0a1b2c\n"));
        CHECK(find_model("--base-model", "gpt2") == add("models--gpt2", "ff", "ff"));
        CHECK(find_model("--base-model", dir.path) == dir.path);
        fs::create_directories(dir.path / "here");
        CHECK(find_model("--base-model", (dir.path / "here").string()) == dir.path / "here");
        // A path that cannot be examined (here a loop of links) is not reported as missing.
        fs::create_symlink("config.json", dir.path / "here" / "config.json");
        const std::string unreachable = error_of([&] { config_path(dir.path / "here"); });
        CHECK(has(unreachable, "config.json cannot be looked at: "));
        CHECK(has(unreachable, std::make_error_code(std::errc::too_many_symbolic_link_levels).message()));

        const auto error = [](const std::string& name) { return error_of([&] { find_model("--base-model", name); }); };
        CHECK(has(error("org/other"), "`hf download org/other` fetches it"));
        CHECK(has(error("org/other"), dir.path.string()));
        for (const char* no_name :
             {"org/a/b", "../org/x", "/none", "org/", "/x", "org/..", "./gpt2", "org/a b", "a--b/c", "-x", ""}) {
            CAPTURE(no_name);
            CHECK(has(error(no_name), "no such file or directory"));
            CHECK_FALSE(has(error(no_name), "hf download"));
        }
        fs::remove(add("models--org--gone", "aa", "bb"));
        CHECK(has(error("org/gone"), "bb: is no directory"));
        const fs::path links = add("models--org--links", "aa", "aa");
        fs::create_symlink("../../blobs/f00", links / "model.safetensors");
        CHECK(
            has(error_of([&] { ModelFiles{links}; }), "\"model.safetensors\" is a link to \"../../blobs/f00\", which"));
        fs::create_symlink("../../blobs/ba5", links / "config.json");
        CHECK(has(error_of([&] { read_base_config(links); }),
                  "it is a link to \"../../blobs/ba5\", which does not exist"));
        const fs::path gguf = add("models--org--gguf", "aa", "aa");
        put(gguf / "m-q4.gguf", "GGUF");
        CHECK(has(error_of([&] { read_base_config(gguf); }), ": --base-model " + (gguf / "m-q4.gguf").string()));
        for (const char* ref : {"../../../etc", "", "a/b", "aa\nbb"}) {
            CAPTURE(ref);
            add("models--org--bad", "aa", ref);
            CHECK(has(error("org/bad"), "wanted the number of a commit"));
        }
    }
}
