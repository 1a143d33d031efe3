// Files are read at once. Pipes are polled, so that a stop is noticed while they are empty.
#include "data/read_text.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <ostream>
#include <string_view>
#include <vector>

#include "data/base/descriptor.h"
#include "data/base/error.h"
#include "data/base/foreign_file.h"
#include "data/base/input_file.h"
#include "data/records.h"
#include "data/text_kind.h"
#include "data/token_format.h"

namespace slab::data {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kMaxTextBytes = kMaxTokensPerFile;  // of one text, which is held in memory

[[noreturn]] void refuse_long(const std::string& name, const std::string& bytes) {
    throw UserError({.subject = name,
                     .given = "has " + bytes + " bytes",
                     .wanted = "a text of at most " + std::to_string(kMaxTextBytes),
                     .hint = "split it into several files and give them all to build/tokenize"});
}

[[noreturn]] void refuse_reading(const std::string& name, int error) {
    throw IoError({.subject = name,
                   .given = "cannot be read: " + system_text(error),
                   .hint = "give text files, or build/tokenize - for standard input"});
}

// Waits until a read would not block. The waits are short, as a signal may come just before one begins.
void wait_for_input(int fd, StopToken stop) {
    constexpr int pause_ms = 100;
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    do stop.throw_if_requested();
    while (poll(&waiting, 1, pause_ms) <= 0);
}

// Returns `text` without a byte order mark, or throws UserError when it looks like something else.
std::string checked(std::string text, const std::string& name, std::ostream& notes) {
    if (const std::string note = check_text(text, name); !note.empty()) notes << "note: " << note << "\n";
    refuse_records_as_text(text, name);
    if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
    return text;
}

}  // namespace

std::string read_text(const fs::path& path, std::ostream& notes, StopToken stop) {
    const std::string name = path.string();
    std::error_code ignored;
    if (fs::is_directory(path, ignored))
        throw UserError({.subject = name,
                         .given = "is a directory",
                         .wanted = "a file of text, records (*.jsonl) or tokens (*.bin)",
                         .hint = "datasets' save_to_disk() writes Arrow tables there; its to_json() writes records"});
    if (const auto kind = kind_of_name(path))
        throw UserError(
            {.subject = name, .given = "is " + kind->name, .wanted = "UTF-8 text or records", .hint = kind->hint});
    if (fs::is_regular_file(path, ignored)) {
        stop.throw_if_requested();
        const InputFile file(path);
        if (file.size_bytes() > kMaxTextBytes) refuse_long(name, std::to_string(file.size_bytes()));
        return checked(file.read_all("text"), name, notes);
    }
    // Not blocking: opening a named pipe would wait for its writer, where nobody asks whether to stop.
    const Descriptor pipe(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!pipe.is_open()) refuse_reading(name, errno);
    return read_text(pipe.get(), name, notes, stop);
}

std::string read_text(int fd, const std::string& name, std::ostream& notes, StopToken stop) {
    std::string text;
    std::vector<char> buffer(size_t{1} << 20);
    for (;;) {
        wait_for_input(fd, stop);
        const ssize_t got = read(fd, buffer.data(), buffer.size());
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0) refuse_reading(name, errno);
        if (got == 0) return checked(std::move(text), name, notes);
        text.append(buffer.data(), static_cast<size_t>(got));
        if (text.size() > kMaxTextBytes) refuse_long(name, "more than " + std::to_string(kMaxTextBytes));
    }
}

}  // namespace slab::data
