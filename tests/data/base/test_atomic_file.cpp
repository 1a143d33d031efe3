// Files that appear whole or not at all: full disks, killed writers, replaced directories, and cleaning that spares
// running writers. Killed writers are real child processes, so that their locks end with them.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "data/base/atomic_file.h"
#include "data/base/error.h"
#include "tests/temporary_files.h"

namespace {
namespace fs = std::filesystem;
using namespace slab::data;
using namespace slab::test;

// Runs `act` in a child that then waits; the child is killed when this goes out of scope, or by kill_now().
struct Child {
    pid_t pid = -1;
    template <typename Act>
    explicit Child(Act act) {
        int ready[2];
        REQUIRE(pipe(ready) == 0);
        pid = fork();
        if (pid == 0) {
            act([&] {
                (void)!write(ready[1], "x", 1);
                for (;;) pause();
            });
            _exit(1);
        }
        REQUIRE(pid > 0);
        close(ready[1]);
        char byte = 0;
        const ssize_t got = read(ready[0], &byte, 1);
        close(ready[0]);
        CHECK(got == 1);
    }
    void kill_now() {
        if (pid <= 0) return;
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        pid = -1;
    }
    ~Child() { kill_now(); }
};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("atomic file: invisible until commit, then whole, and nothing else remains") {
        FreshDirectory dir;
        const fs::path path = dir.path / "log.jsonl";
        {
            AtomicFile file(path);
            file.write("0000 world", 10);
            file.overwrite(0, "good", 4);
            CHECK(file.size_bytes() == 10);
            CHECK_FALSE(fs::exists(path));
            file.commit();
            CHECK_THROWS_AS(file.commit(), std::logic_error);
            CHECK_THROWS_AS(file.write("x", 1), std::logic_error);
        }
        CHECK(content(path) == "good world");
        write_file_atomically(path, "second");
        CHECK(content(path) == "second");
        CHECK(names_in(dir.path).size() == 1);
    }

    TEST_CASE("atomic file: without commit the old content stays and no temporary is left") {
        FreshDirectory dir;
        const fs::path path = dir.path / "f";
        write_file_atomically(path, "old");
        {
            AtomicFile file(path);
            file.write("new", 3);
            file.prepare();
            CHECK_THROWS_AS(file.write("x", 1), std::logic_error);
        }
        CHECK(content(path) == "old");
        CHECK(names_in(dir.path).size() == 1);
        AtomicFile file(path);
        file.write("abc", 3);
        CHECK_THROWS_AS(file.overwrite(2, "xy", 2), std::logic_error);
    }

    TEST_CASE("atomic file: a full disk leaves the old content and names path, bytes and reason") {
        FreshDirectory dir;
        const fs::path path = dir.path / "weights";
        write_file_atomically(path, "old");
        std::string message;
        {
            SmallDisk disk(1000);
            message = error_of([&] { write_file_atomically(path, std::string(5000, 'w')); });
        }
        CHECK(has(message, path.string()));
        CHECK(has(message, "5000 bytes at offset 0"));
        CHECK(has(message, "1000 were written"));
        CHECK(has(message, "File too large"));
        CHECK(has(message, "free some space"));
        CHECK(content(path) == "old");
        CHECK(names_in(dir.path).size() == 1);

        SmallDisk disk(1000);
        AtomicFile file(path);
        CHECK_THROWS_AS(file.write(std::string(2000, 'x').data(), 2000), IoError);
        CHECK_THROWS_AS(file.commit(), std::logic_error);
    }

    TEST_CASE("atomic file: places that cannot be written") {
        FreshDirectory dir;
        write_file_atomically(dir.path / "file", "x");
        const auto message_for = [&](const fs::path& path) { return error_of([&] { AtomicFile file(path); }); };
        CHECK(has(message_for(dir.path / "missing" / "f"), "No such file or directory"));
        CHECK(has(message_for(dir.path / "file" / "f"), "Not a directory"));
        CHECK(has(message_for(dir.path), "not a regular file"));
        CHECK(has(message_for("/dev/null"), "not a regular file"));
        CHECK(has(message_for(""), "not a name"));
        CHECK(has(error_of([&] { AtomicDirectory made(dir.path / "file"); }), "not a directory"));

        fs::permissions(dir.path, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_exec);
        const bool root = geteuid() == 0;
        if (root) REQUIRE(seteuid(65534) == 0);
        const std::string message = message_for(dir.path / "f");
        if (root) REQUIRE(seteuid(0) == 0);
        fs::permissions(dir.path, fs::perms::owner_all);
        CHECK(has(message, "Permission denied"));
        CHECK(has(message, "may write to"));
    }

    TEST_CASE("atomic file: long names, links, and a path that goes through a changed working directory") {
        FreshDirectory dir;
        const fs::path longest = dir.path / std::string(255, 'n');
        write_file_atomically(longest, "long");
        CHECK(content(longest) == "long");

        write_file_atomically(dir.path / "real", "1");
        fs::create_symlink("real", dir.path / "link");
        write_file_atomically(dir.path / "link", "2");
        CHECK(fs::is_symlink(dir.path / "link"));
        CHECK(content(dir.path / "real") == "2");

        const fs::path before = fs::current_path();
        fs::current_path(dir.path);
        AtomicFile file("relative");
        file.write("r", 1);
        fs::current_path(before);
        file.commit();
        CHECK(content(dir.path / "relative") == "r");
    }

    TEST_CASE("atomic directory: appears whole, replaces whole, and leaves nothing when abandoned") {
        FreshDirectory dir;
        const fs::path path = dir.path / "checkpoint-100";
        const auto save = [&](const std::string& text, bool commit) {
            AtomicDirectory made(path / "");  // with the trailing slash that users type
            fs::create_directories(made.staging() / "deep");
            write_file_atomically(made.staging() / "deep" / "a", text);
            if (commit) made.commit(Existing::replace);
        };
        save("abandoned", false);
        CHECK(names_in(dir.path).empty());
        save("one", true);
        CHECK(content(path / "deep" / "a") == "one");
        write_file_atomically(path / "only-in-the-old", "x");
        save("two", true);
        CHECK(content(path / "deep" / "a") == "two");
        CHECK_FALSE(fs::exists(path / "only-in-the-old"));
        save("abandoned", false);
        CHECK(content(path / "deep" / "a") == "two");
        CHECK(names_in(dir.path).size() == 1);
    }

    TEST_CASE("atomic directory: a target that appeared as a file meanwhile is not destroyed") {
        FreshDirectory dir;
        const fs::path path = dir.path / "d";
        {
            AtomicDirectory made(path);
            write_file_atomically(path, "somebody's");
            CHECK_THROWS_AS(made.commit(Existing::replace), IoError);
        }
        CHECK(content(path) == "somebody's");
        CHECK(names_in(dir.path).size() == 1);
    }

    TEST_CASE("atomic directory: what appeared under a name that is not the caller's own stays, the result beside it") {
        const FreshDirectory dir;
        const fs::path path = dir.path / "merged";
        const auto make = [&](const std::function<void()>& meanwhile) {
            return error_of([&] {
                AtomicDirectory made(path);
                write_file_atomically(made.staging() / "weights", "made");
                meanwhile();
                made.commit(Existing::keep);
            });
        };
        CHECK(make([&] { fs::create_directory(path); }) == "");  // empty: nobody's
        CHECK(content(path / "weights") == "made");
        fs::remove_all(path);
        const auto into_it = [&] {
            fs::create_directory(path);
            write_file_atomically(path / "notes", "somebody's");
        };
        for (const char* beside : {"merged.finished-1", "merged.finished-2"}) {
            const std::string error = make(into_it);
            CHECK(has(error, path.string() + ": cannot rename the finished directory to it: Directory not empty"));
            CHECK(has(error, (dir.path / beside).string() + ". Hint"));
            CHECK(content(path / "notes") == "somebody's");
            CHECK_FALSE(fs::exists(path / "weights"));
            CHECK(content(dir.path / beside / "weights") == "made");
        }
        fs::remove_all(path);
        CHECK(has(make([&] { write_file_atomically(path, "somebody's"); }), "merged.finished-3"));
        CHECK(content(path) == "somebody's");
        CHECK(names_in(dir.path).size() == 4);
    }

    TEST_CASE("directory lock: one holder at a time, let go with the object, nothing left behind") {
        const FreshDirectory dir;
        {
            DirectoryLock first(dir.path);
            CHECK_THROWS_WITH_AS(DirectoryLock{dir.path}, doctest::Contains("another run is writing"), UserError);
            DirectoryLock moved = std::move(first);
            CHECK_THROWS_AS(DirectoryLock{dir.path}, UserError);
        }
        CHECK_NOTHROW(DirectoryLock{dir.path});
        CHECK(fs::is_empty(dir.path));
        CHECK_THROWS_AS(DirectoryLock{dir.path / "missing"}, IoError);
    }

    TEST_CASE("stale temporaries: a killed writer's are removed, a living writer's are not") {
        FreshDirectory dir;
        const fs::path path = dir.path / "d";
        Child child([&](auto wait) {
            AtomicDirectory directory(path);
            AtomicFile inside(directory.staging() / "half");
            AtomicFile file(dir.path / "f");
            file.write("half", 4);
            wait();
        });
        AtomicFile mine(dir.path / "mine");
        mine.write("m", 1);
        CHECK(names_in(dir.path).size() == 3);
        CHECK(remove_stale_temporaries(dir.path) == 0);
        CHECK(names_in(dir.path).size() == 3);
        child.kill_now();
        CHECK(remove_stale_temporaries(dir.path) == 2);
        CHECK(names_in(dir.path).size() == 1);
        mine.commit();
        CHECK(content(dir.path / "mine") == "m");
        CHECK(remove_stale_temporaries(dir.path / "missing") == 0);
    }

    TEST_CASE("stale temporaries: killed between the two renames of a replacement, the old directory comes back") {
        FreshDirectory dir;
        const fs::path away = dir.path / ".tmp-999999-0.old-checkpoint-7";
        const fs::path half = dir.path / ".tmp-999999-1-checkpoint-7";
        for (const bool replaced : {false, true}) {
            fs::create_directories(away);
            fs::create_directories(half);
            write_file_atomically(away / "w", "old");
            if (replaced) {
                fs::remove_all(dir.path / "checkpoint-7");
                fs::create_directories(dir.path / "checkpoint-7");
                write_file_atomically(dir.path / "checkpoint-7" / "w", "new");
            }
            CHECK(remove_stale_temporaries(dir.path) == 2);
            CHECK(content(dir.path / "checkpoint-7" / "w") == (replaced ? "new" : "old"));
            CHECK(names_in(dir.path).size() == 1);
        }
    }

    TEST_CASE("deleting a directory: all of it, and a deleter killed in the middle leaves only what is cleaned up") {
        FreshDirectory dir;
        fs::create_directories(dir.path / "checkpoint-7" / "deep");
        write_file_atomically(dir.path / "checkpoint-7" / "deep" / "w", "x");
        write_file_atomically(dir.path / "beside", "y");
        remove_directory_atomically(dir.path / "checkpoint-7");
        CHECK(names_in(dir.path) == std::vector<std::string>{"beside"});
        CHECK_THROWS_AS(remove_directory_atomically(dir.path / "checkpoint-7"), IoError);
        CHECK_THROWS_AS(remove_directory_atomically(dir.path / "beside"), IoError);
        CHECK(content(dir.path / "beside") == "y");
        // A link is removed, its target stays.
        fs::create_directories(dir.path / "elsewhere");
        fs::create_directory_symlink(dir.path / "elsewhere", dir.path / "checkpoint-8");
        remove_directory_atomically(dir.path / "checkpoint-8");
        CHECK(names_in(dir.path).size() == 2);
    }

    TEST_CASE("stale temporaries: names that only look alike are the user's") {
        FreshDirectory dir;
        const std::vector<std::string> names = {".tmp-",
                                                ".tmp-1",
                                                ".tmp-1-2",
                                                ".tmp-1-2-",
                                                ".tmp-x-1-a",
                                                ".tmp-1-x-a",
                                                "tmp-1-1-a",
                                                ".tmp-1-2.old-",
                                                ".tmp",
                                                "a.tmp-1-1-a",
                                                ".tmp-99999999999999999999-1-a"};
        for (const auto& name : names) std::ofstream(dir.path / name) << "x";
        CHECK(remove_stale_temporaries(dir.path) == 0);
        CHECK(names_in(dir.path).size() == names.size());
    }
}
