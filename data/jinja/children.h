// What a node is made of, for passes that go through a whole tree.
#pragma once

#include "data/jinja/tree.h"

namespace slab::data::jinja {

// All children, null ones too, in the order in which they are evaluated.
Nodes children_of(Node& node);

}  // namespace slab::data::jinja
