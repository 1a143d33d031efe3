// The attributes that filters such as map and sort follow: "name", "author.name", "items.0", or a number.
#pragma once

#include <vector>

#include "data/jinja/evaluator.h"

namespace slab::data::jinja {

struct Path {
    const Value* steps = nullptr;  // [size] texts and integers, in the arena
    size_t size = 0;
};

Path path_of(Evaluator& evaluator, const Value* attribute);                // null or none: the item itself
std::vector<Path> paths_of(Evaluator& evaluator, const Value* attribute);  // with commas between them
Value follow(Evaluator& evaluator, const Path& path, const Value& item, const Value* otherwise = nullptr);

}  // namespace slab::data::jinja
