// Kinds of file that are none of those read here, by name: archives, tables, pickles, documents, pictures.
//
// A reader that takes the rest for its own would train on an archive's bytes, or say that JSON is broken. Readers ask
// here first and refuse by name. Signatures are those of the formats' documents; docs/data.md lists the kinds.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "data/base/input_file.h"

namespace slab::data {

struct ForeignKind {
    std::string name;  // "a gzip archive"
    std::string hint;  // what makes it into something that is read here
};

// Bytes of a file's beginning that kind_of_content() looks at.
inline constexpr size_t kForeignHeadBytes = 512;

// The kind by its first bytes, or nothing.
std::optional<ForeignKind> kind_of_content(std::string_view head);
// The kind by the file name's ending, for what begins as any text does: tables (*.csv). Nothing for other names.
std::optional<ForeignKind> kind_of_name(const std::filesystem::path& path);

// Throws UserError when the content is of a known kind. name: the file in the error; wanted: what is read there.
void refuse_foreign_content(std::string_view head, const std::string& name, const std::string& wanted);
void refuse_foreign_content(const InputFile& file, const std::string& wanted);

}  // namespace slab::data
