// Paths are compared by the places that they lead to, not by their spelling.
#include "data/base/output_paths.h"

#include <algorithm>

#include "data/base/error.h"

namespace slab::data {

namespace fs = std::filesystem;

fs::path place_of(const fs::path& path) {
    std::error_code error;
    const fs::path place = fs::weakly_canonical(fs::absolute(path), error);
    return error ? fs::absolute(path).lexically_normal() : place;
}

bool same_place(const fs::path& a, const fs::path& b) {
    std::error_code error;
    return fs::equivalent(a, b, error) || place_of(a) == place_of(b);
}

bool lies_in(const fs::path& path, const fs::path& directory) {
    // Asked of a file in it: "new/" by itself would end in an empty name.
    const fs::path inner = place_of(path), outer = place_of(directory / "x").parent_path();
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

void require_new_file(const std::string& flag, const fs::path& path) {
    const std::string given = flag + " " + path.string();
    std::error_code error;
    const fs::file_status there = fs::symlink_status(path, error);
    if (there.type() != fs::file_type::not_found) {
        if (error && there.type() == fs::file_type::none) throw IoError({.subject = given, .given = error.message()});
        throw UserError({.subject = given,
                         .given = "exists, and would be replaced",
                         .wanted = "a new file",
                         .hint = "give another name, or remove what is there"});
    }
    if (path.filename().empty())
        throw UserError({.subject = given, .given = "names a directory", .wanted = "a new file"});
    if (!fs::is_directory(place_of(path).parent_path(), error))
        throw UserError(
            {.subject = given, .given = "the directory it shall lie in does not exist", .hint = "make it first"});
}

void require_new_directory(const std::string& flag, const fs::path& path) {
    std::error_code error;
    if (!fs::exists(path, error)) return;
    const bool directory = fs::is_directory(path, error);
    if (!directory || !fs::is_empty(path, error))
        throw UserError({.subject = flag + " " + path.string(),
                         .given = directory ? "exists and is not empty" : "exists and is no directory",
                         .wanted = "a new directory",
                         .hint = "remove it, or give another"});
}

}  // namespace slab::data
