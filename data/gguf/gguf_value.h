// How a GGUF file writes one value of its metadata. gguf.cpp knows where values and tensors lie.
//
// Invariant: a value takes a small multiple of its bytes in the file.
#pragma once

#include <string>

#include "data/gguf/gguf.h"
#include "data/gguf/gguf_cursor.h"

namespace slab::data {

// The value of `key`, whose type is at the cursor. Throws UserError naming file, offset and key.
GgufValue read_gguf_value(GgufCursor& cursor, const std::string& key);

}  // namespace slab::data
