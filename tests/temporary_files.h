// Tools for tests of files: a fresh directory that goes away, whole-file reading, and a disk that is too small.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace slab::test {

struct FreshDirectory {
    std::filesystem::path path;
    FreshDirectory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "slab-test-XXXXXX").string();
        REQUIRE(mkdtemp(pattern.data()) != nullptr);
        path = pattern;
    }
    ~FreshDirectory() { std::filesystem::remove_all(path); }
    FreshDirectory(const FreshDirectory&) = delete;
    FreshDirectory& operator=(const FreshDirectory&) = delete;
};

// While it lives, root becomes nobody, as file modes do not stop root. Directories that the test needs must be opened.
struct NoRoot {
    const bool root = geteuid() == 0;
    NoRoot() {
        if (root) REQUIRE(seteuid(65534) == 0);
    }
    ~NoRoot() {
        if (root) (void)!seteuid(0);
    }
    NoRoot(const NoRoot&) = delete;
    NoRoot& operator=(const NoRoot&) = delete;
};

// A disk that takes no more than `limit_bytes` a file. The kernel ends a write short, then answers with EFBIG, as with
// ENOSPC when a real disk is full.
struct SmallDisk {
    rlimit before{};
    void (*handler)(int);
    explicit SmallDisk(rlim_t limit_bytes) : handler(signal(SIGXFSZ, SIG_IGN)) {
        getrlimit(RLIMIT_FSIZE, &before);
        const rlimit small{limit_bytes, before.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
    }
    ~SmallDisk() {
        setrlimit(RLIMIT_FSIZE, &before);
        signal(SIGXFSZ, handler);
    }
    SmallDisk(const SmallDisk&) = delete;
    SmallDisk& operator=(const SmallDisk&) = delete;
};

inline std::string content(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

inline void put(const std::filesystem::path& path, std::string_view bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Sorted, hidden ones included.
inline std::vector<std::string> names_in(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
        names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

// The message of the Exception that `act` throws; empty when it throws none.
template <class Exception = std::runtime_error, class Act>
std::string error_of(Act act) {
    try {
        act();
    } catch (const Exception& error) {
        return error.what();
    }
    return "";
}

inline bool has(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

}  // namespace slab::test
