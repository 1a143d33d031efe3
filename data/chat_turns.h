// Which bytes of a rendered conversation are an assistant's turns.
//
// A template with generation blocks says it itself. Without them, turn k is what comes between two renderings: that of
// the messages before it with the generation prompt, and that of the messages up to it. Both must begin the whole text,
// as far as the turn goes. Where they do not, as with Qwen3's thoughts that only the last turn has, the turn would be
// seen otherwise when it is generated: it is context only. The last turn is trained on in any case. A template without
// a generation prompt shows no such beginning; a turn then begins with the reply's own words.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/conversation.h"
#include "data/jinja/template.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// Origins of texts (data/jinja/value.h): the message they stand in, and where there.
enum class MessagePart : uint32_t { role, content, thoughts, calls };
inline constexpr uint32_t kOtherOrigin = 1;  // tools and variables
inline uint32_t origin_of(size_t message, MessagePart part) {
    return static_cast<uint32_t>(2 + 4 * message) + static_cast<uint32_t>(part);
}

// Where a message's own words are in the text; role and template apart.
struct OwnWords {
    size_t begin = SIZE_MAX, end = 0;  // begin > end: nowhere
    uint8_t seen = 0;                  // a bit for each MessagePart
    bool any() const { return begin < end; }
    bool has(MessagePart part) const { return (seen >> static_cast<unsigned>(part) & 1) != 0; }
};
std::vector<OwnWords> own_words(const jinja::Rendered& rendered, size_t messages);

struct Turn {
    size_t message;
    TextRange range;        // what is trained on, up to `range.end` at most
    size_t words_end;       // after the reply's own words: its end is looked for from here on
    bool must_end = false;  // context only unless a special token ends it before range.end
    bool is_exact = false;  // of a generation block: nothing is cut off
};

struct Turns {
    std::vector<Turn> turns;  // those to train on, ascending
    size_t context_turns = 0, other_openings = 0;
};

// Renders the first n messages, with a generation prompt or without. Nothing where the template refuses.
using RenderFirst = std::function<std::optional<std::string>(size_t n, bool generation_prompt)>;

// where: for errors, if flags on messages cannot be told apart.
Turns find_turns(const jinja::Rendered& whole, const Conversation& conversation, const jinja::Template& of,
                 std::span<const OwnWords> words, const RenderFirst& render, const std::string& where);

}  // namespace slab::data
