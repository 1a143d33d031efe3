// Errors from outside the program, as types: a catch names the one it means.
//
// UserError: what was given cannot be used, be it a flag, a name or a file's content. The remedy is in the user's
// hands. IoError: the system refused (open, read, write, lock, rename), or a file changed while it was in use. A
// device's failure is a DeviceError (kernels/runtime/device_error.h). A programmer's mistake is a std::logic_error and
// is never caught to be shown as one of these.
#pragma once

#include <concepts>
#include <stdexcept>
#include <string>

namespace slab::data {

// One form for all of them: "SUBJECT: GIVEN; wanted WANTED. Hint: HINT". An empty part is left out, and none ends in a
// full stop.
struct ErrorText {
    std::string subject =
        {};                  // the flag with its value, or the file and the place in it: "--lora-r 0", "a.json, line 3"
    std::string given = {};  // what is wrong with it: "is out of range", "tensor \"b\" has shape [2]"
    std::string wanted = {};  // what would be right: "1 to 4096"
    std::string hint = {};    // what helps: "lower --sequence-len"

    std::string text() const;
};

struct UserError : std::runtime_error {
    explicit UserError(const ErrorText& error) : std::runtime_error(error.text()) {}
    // A text that is whole already. (A template, since a braced list must mean an ErrorText.)
    template <std::convertible_to<std::string> Text>
    explicit UserError(const Text& text) : std::runtime_error(text) {}
};

struct IoError : std::runtime_error {
    explicit IoError(const ErrorText& error) : std::runtime_error(error.text()) {}
    template <std::convertible_to<std::string> Text>
    explicit IoError(const Text& text) : std::runtime_error(text) {}
};

// The system's text for an errno: "No space left on device".
std::string system_text(int error);

}  // namespace slab::data
