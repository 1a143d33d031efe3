// What goes wrong outside the program, as types: a catch names the one it means.
//
// UserError: what was given cannot be used; the remedy is in the user's hands. IoError: the system refused, or what a
// disk holds cannot be read or written. A device's failure is a DeviceError (kernels/runtime/device_error.h). A
// programmer's mistake is a std::logic_error and is never caught to be shown as one of these.
#pragma once

#include <stdexcept>
#include <string>

namespace slab::data {

// One form for all of them: "SUBJECT: GIVEN; wanted WANTED. Hint: HINT". What is empty is left out.
struct ErrorText {
    std::string subject;  // flag with its value, file, or file and tensor: "--lora-r 0", "model.safetensors"
    std::string given;    // what is wrong with it: "is out of range", "is cut short at byte 512"
    std::string wanted;   // what would be right: "1 to 4096"
    std::string hint;     // what helps: "lower --sequence-len"

    std::string text() const;
};

struct UserError : std::runtime_error {
    explicit UserError(const ErrorText& error) : std::runtime_error(error.text()) {}
    // A text that is whole already.
    explicit UserError(const std::string& text) : std::runtime_error(text) {}
};

struct IoError : std::runtime_error {
    explicit IoError(const ErrorText& error) : std::runtime_error(error.text()) {}
    explicit IoError(const std::string& text) : std::runtime_error(text) {}
};

}  // namespace slab::data
