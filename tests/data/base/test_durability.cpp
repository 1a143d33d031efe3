// What is on the disk before a file or directory gets its name, and locks on files that are replaced at that moment. A
// machine that loses its power keeps nothing else.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "data/base/atomic_file.h"
#include "data/base/file_lock.h"
#include "tests/system_calls.h"
#include "tests/temporary_files.h"

namespace {
namespace fs = std::filesystem;
using namespace slab::data;
using namespace slab::test;

// A finished directory of files, one of them deep inside, and a link.
void commit_directory(const fs::path& path, Existing existing) {
    AtomicDirectory directory(path);
    fs::create_directories(directory.staging() / "a" / "b");
    put(directory.staging() / "weights", std::string(1000, 'w'));
    put(directory.staging() / "a" / "b" / "state", "s");
    fs::create_symlink("weights", directory.staging() / "link");
    directory.commit(existing);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("durability: a file is on the disk, all of it, before it has its name, and the name afterwards") {
        const FreshDirectory dir;
        const fs::path path = fs::canonical(dir.path) / "file";
        const SystemCalls calls;
        {
            AtomicFile file(path);
            file.write("head", 4);
            file.write("tail", 4);
            file.overwrite(0, "HEAD", 4);
            file.commit();
        }
        CHECK(content(path) == "HEADtail");
        CHECK(not_durable(calls.made(), path) == "");
    }

    TEST_CASE("durability: files that belong together are all on the disk before the first has its name") {
        const FreshDirectory dir;
        const fs::path first_path = fs::canonical(dir.path) / "first", second_path = fs::canonical(dir.path) / "second";
        const SystemCalls calls;
        {
            AtomicFile first(first_path), second(second_path);
            first.write("1", 1);
            second.write("22", 2);
            first.prepare();
            second.prepare();
            first.commit();
            second.commit();
        }
        const auto made = calls.made();
        CHECK(not_durable(made, first_path) == "");
        CHECK(not_durable(made, second_path) == "");
        const size_t second_renamed = rename_to(made, second_path);
        REQUIRE(second_renamed < made.size());
        CHECK(synced(made, rename_to(made, first_path), made[second_renamed].path, 2));
    }

    TEST_CASE("durability: written and copied files too") {
        const FreshDirectory dir;
        const fs::path here = fs::canonical(dir.path);
        const SystemCalls calls;
        write_file_atomically(here / "written", "content");
        copy_file_atomically(here / "written", here / "copied");
        for (const char* name : {"written", "copied"}) CHECK(not_durable(calls.made(), here / name) == "");
    }

    TEST_CASE("durability: a directory is on the disk with everything in it before it has its name") {
        for (const Existing existing : {Existing::keep, Existing::replace}) {
            for (const bool replaced : {false, true}) {
                if (replaced && existing == Existing::keep) continue;
                const FreshDirectory dir;
                const fs::path path = fs::canonical(dir.path) / "checkpoint";
                if (replaced) {
                    fs::create_directory(path);
                    put(path / "old", "o");
                }
                const SystemCalls calls;
                commit_directory(path, existing);
                CHECK(names_in(path) == std::vector<std::string>{"a", "link", "weights"});
                CHECK(not_durable(calls.made(), path) == "");
            }
        }
    }

    TEST_CASE("durability: a directory left beside what came to be there is on the disk too") {
        const FreshDirectory dir;
        const fs::path path = fs::canonical(dir.path) / "model";
        fs::create_directory(path);
        put(path / "of somebody", "x");
        const SystemCalls calls;
        CHECK_THROWS(commit_directory(path, Existing::keep));
        CHECK(not_durable(calls.made(), path.string() + ".finished-1") == "");
    }

    TEST_CASE("locks: a file that is replaced between opening and locking is locked all the same") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "log";
        put(path, "old");
        SystemCalls calls;
        calls.before_flock([&] { write_file_atomically(path, "new"); });
        const FileLock lock(path, "a log");
        CHECK(content(path) == "new");
        CHECK_THROWS(FileLock(path, "a log"));  // the file that has the name is the one that is locked
    }

    TEST_CASE("locks: a temporary that a cleaner takes between its creation and its lock is made again") {
        const FreshDirectory dir;
        for (const bool directory : {false, true}) {
            CAPTURE(directory);
            SystemCalls calls;
            size_t taken = 0;
            calls.before_flock([&] {
                for (const auto& name : names_in(dir.path))
                    if (name.starts_with(".tmp-")) taken += fs::remove(dir.path / name);
            });
            if (directory)
                commit_directory(dir.path / "directory", Existing::replace);
            else
                write_file_atomically(dir.path / "file", "content");
            CHECK(taken == 1);
        }
        CHECK(content(dir.path / "file") == "content");
        CHECK(names_in(dir.path) == std::vector<std::string>{"directory", "file"});
    }
}
