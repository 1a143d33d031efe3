// Errors of removing are ignored: the program's own end says more.
#include "data/base/output_directory.h"

#include <system_error>

#include "data/base/error.h"

namespace slab::data {

namespace fs = std::filesystem;

OutputDirectory::OutputDirectory(const std::string& flag, const fs::path& directory) {
    std::error_code error;
    for (fs::path p = fs::absolute(directory); !fs::exists(p, error) && p.has_relative_path(); p = p.parent_path())
        made_.push_back(p);
    fs::create_directories(directory, error);
    if (error || !fs::is_directory(directory))
        throw IoError({.subject = flag + " " + directory.string(),
                       .given = "cannot be made: " + (error ? error.message() : "a file is in the way"),
                       .wanted = "",
                       .hint = "choose a directory that you may write to"});
}

OutputDirectory::~OutputDirectory() {
    std::error_code error;
    for (const fs::path& path : made_)
        if (fs::is_directory(path, error)) fs::remove(path, error);  // fails if it holds something
}

}  // namespace slab::data
