// Values of a GGUF file's metadata, which all come in GgufValue's few kinds (gguf.h). Apart from gguf.cpp, which knows
// where values and tensors lie; this knows how a value is written. What is held in memory is a small multiple of the
// bytes that the value takes in the file.
#pragma once

#include <string>

#include "data/gguf/gguf.h"
#include "data/gguf/gguf_cursor.h"

namespace slab::data {

// The value of `key`, whose type stands at the cursor. Throws std::runtime_error naming file, offset and key.
GgufValue read_gguf_value(GgufCursor& cursor, const std::string& key);

}  // namespace slab::data
