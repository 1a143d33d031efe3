// Config files of a run: the part of TOML that a list of flags needs, one `key = value` a line.
//
// Values are strings ("..." with escapes, '...' as they stand), numbers, true and false, and lists of these on one
// line. A list becomes one text joined by commas ("q_proj,v_proj"). Any text survives being written and read; CLI11's
// own reader knows no escapes. Source of the format: toml.io/en/v1.0.0.
#pragma once

#include <istream>
#include <string>
#include <vector>

namespace slab::train {

struct ConfigEntry {
    std::string key, value;  // the key with '-' for every '_', as flags are spelled
    int line;                // from 1
    bool is_list = false;    // of several values
};

// where: the file, for errors. Throws data::UserError naming file, line, its text and what is wanted, and data::IoError
// if reading fails.
std::vector<ConfigEntry> parse_config(std::istream& input, const std::string& where);

// A value as it is written: a number or a truth value bare, anything else as a string.
std::string config_value(const std::string& value);

}  // namespace slab::train
