// Finds out which variable each name of a template means, by the rules of Jinja's compiler.
//
// A loop, macro, call block, set block, filter block, with and generation block open a scope; if does not. A name that
// a scope sets is the scope's own from its beginning. It begins with the value of the scope around it, or of the
// context where it may be read before it is set. Unknown filters and tests are refused here unless an if stands around
// them; Jinja, too, minds those only when they are reached.
#pragma once

#include "data/jinja/tree.h"

namespace slab::data::jinja {

// Sets the places, scopes and slots of the tree. Throws a SourceProblem.
void resolve_names(Tree& tree);

}  // namespace slab::data::jinja
