// Kinds of file by their first bytes and names, and texts that begin as those do.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "data/base/foreign_file.h"
#include "data/base/json_file.h"
#include "data/records.h"
#include "data/token_file.h"
#include "tests/kernel_checks.h"
#include "tests/temporary_files.h"
#include "train/files/safetensors.h"

using namespace slab;
using namespace slab::data;
using namespace slab::test;
using namespace std::string_literals;

namespace {

const std::vector<std::pair<std::string, std::string>>& beginnings() {
    static const std::vector<std::pair<std::string, std::string>> all = {
        {"\x1f\x8b\x08\0\0\0\0\0\0\x03"s, "a gzip archive"},
        {"PK\x03\x04\x14\0\0\0"s, "a ZIP archive"},
        {"BZh91AY&SY\0"s, "a bzip2 archive"},
        {"\xfd\x37zXZ\0\0\x04"s, "an xz archive"},
        {"\x28\xb5\x2f\xfd\x04\x58"s, "a Zstandard archive"},
        {"7z\xbc\xaf\x27\x1c\0\x04"s, "a 7-Zip archive"},
        {std::string(257, 'n') + "ustar\0"s + std::string(200, '\0'), "a tar archive"},
        {"PAR1\x15\x04\x15\x10"s, "a Parquet table"},
        {"PAR1\0\0\0\0PAR1"s, "a Parquet table"},
        {"ARROW1\0\0\xff\xff"s, "an Arrow table"},
        {"\xff\xff\xff\xff\x88\0\0\0"s, "an Arrow stream"},
        {"SQLite format 3\0"s, "an SQLite database"},
        {"\x89HDF\r\n\x1a\n"s, "an HDF5 file"},
        {"\x93NUMPY\x01\0"s, "a NumPy array"},
        {"Obj\x01\x04\x16"s, "an Avro table"},
        {"\x80\x04\x95\x1a\0\0\0\0\0\0\0}"s, "a Python pickle"},
        {"\x80\x02}q\0X\x04\0\0\0"s, "a Python pickle"},
        {"\x80\x03]q\0(K\x01"s, "a Python pickle"},
        {"(lp0\nI1\naI2\na."s, "a Python pickle"},
        {"%PDF-1.7\n%\xe2\xe3"s, "a PDF document"},
        {"{\\rtf1\\ansi"s, "an RTF document"},
        {"\x89PNG\r\n\x1a\n"s, "a PNG picture"},
        {"\xff\xd8\xff\xe0"s, "a JPEG picture"},
        {"\x7f"
         "ELF\x02\x01"s,
         "a program"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n"s, "a Git LFS pointer"},
        {"GGUF\x03\0\0\0"s, "a GGUF model"},
        {"\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\""s, "a safetensors file"},
        {"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n"s, "a SentencePiece model"},
    };
    return all;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("foreign files: known by their first bytes, and texts are not") {
        for (const auto& [head, name] : beginnings()) {
            CAPTURE(name);
            const auto kind = kind_of_content(head);
            REQUIRE(kind);
            CHECK(has(kind->name, name));
            CHECK(!kind->hint.empty());
            // One byte alone says nothing.
            CHECK(!kind_of_content(head.substr(0, 1)));
        }
        for (const char* text : {"PARENTS and children", "PAR1 is how a Parquet file begins", "ORCHARDS in bloom",
                                 "GGUF is a file format", "BZh is no word", "GIF8 is none either", "7z is short",
                                 "%PDF without a dash", "Obj ects", "(lp0 is no list", "\n\nA text", "{ \\rtf", "é", "",
                                 "version https://example.org", "ARROW1 is a street"}) {
            CAPTURE(text);
            CHECK(!kind_of_content(text));
        }
        CHECK(kind_of_name("a/b.CSV")->name == "a CSV table");
        CHECK(kind_of_name("b.tsv")->name == "a table with tabs");
        CHECK(kind_of_name("b.parquet")->name == "a Parquet table");
        for (const char* name : {"csv", "a.txt", "a.csv.txt", "a.jsonl", "a", ".bin"}) CHECK(!kind_of_name(name));
    }

    TEST_CASE("foreign files: every reader names them before it looks for errors of its own format") {
        const FreshDirectory dir;
        for (const auto& [head, name] : beginnings()) {
            CAPTURE(name);
            const auto file = dir.path / "file";
            put(file, head + std::string(2000, 'x'));
            const std::string is = file.string() + ": is " + name;
            CHECK(has(error_of([&] { read_json_file(file); }), is));
            CHECK(has(error_of([&] { RecordReader reader(file); }), is));
            CHECK(has(error_of([&] { TokenFile tokens(file); }), is));
            if (has(name, "safetensors") || has(name, "GGUF")) continue;  // its own format; a hint names the other
            CHECK(error_of([&] { train::SafetensorsFile weights(file); }) != "");
        }
    }
}
