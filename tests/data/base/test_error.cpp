// Errors have one form, in which parts that are not given leave no trace; output directories that stay empty go again.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "data/base/error.h"
#include "data/base/output_directory.h"
#include "data/base/output_paths.h"
#include "tests/temporary_files.h"

using namespace slab::data;
using namespace slab::test;
namespace fs = std::filesystem;

TEST_SUITE("cpu") {
    TEST_CASE("errors: one form, without the parts that are empty") {
        const auto text = [](const ErrorText& error) { return std::string(UserError(error).what()); };
        CHECK(text({"--lora-r 0", "is out of range", "1 to 4096", "try 16"}) ==
              "--lora-r 0: is out of range; wanted 1 to 4096. Hint: try 16");
        CHECK(text({.subject = "a.json", .given = "is empty"}) == "a.json: is empty");
        CHECK(text({.subject = "a.json", .wanted = "a list"}) == "a.json: wanted a list");
        CHECK(text({.given = "nothing is given", .wanted = "a file"}) == "nothing is given; wanted a file");
        CHECK(text({.wanted = "a file", .hint = "- is standard input"}) == "wanted a file. Hint: - is standard input");
        CHECK(text({.subject = "a.json", .hint = "fetch it"}) == "a.json. Hint: fetch it");
        // A braced list of two texts is an ErrorText, not a std::string from two iterators.
        CHECK(std::string(IoError({.subject = "a", .given = "b"}).what()) == "a: b");
        CHECK(std::string(IoError("a whole text").what()) == "a whole text");
        CHECK(system_text(2) == "No such file or directory");
    }

    TEST_CASE("output directory: those made go again while they are empty, those that were there stay") {
        const FreshDirectory dir;
        const fs::path here = dir.path / "here";
        fs::create_directory(here);
        { const OutputDirectory made("--output-dir", here / "a" / "b"); }
        CHECK(fs::is_empty(here));
        { const OutputDirectory there("--output-dir", here); }
        CHECK(fs::is_directory(here));
        {
            const OutputDirectory made("--output-dir", here / "a" / "b");
            put(here / "a" / "b" / "file", "x");
        }
        CHECK(fs::exists(here / "a" / "b" / "file"));
        const std::string error =
            error_of<IoError>([&] { OutputDirectory("--output-dir", here / "a" / "b" / "file" / "c"); });
        CHECK(has(error, "--output-dir " + (here / "a" / "b" / "file" / "c").string() + ": cannot be made: "));
        CHECK(has(error, ". Hint: "));
    }
}
