// Parts of texts and the builder. memmem() of glibc is linear, where std::string_view::find() can be made quadratic.
#include "data/jinja/text.h"

#include <algorithm>
#include <cstring>

namespace slab::data::jinja {

size_t count_chars(std::string_view text) {
    size_t count = 0;
    for (const char c : text) count += (c & 0xc0) != 0x80;
    return count;
}

size_t byte_of_char(std::string_view text, size_t n) {
    const size_t ascii = ascii_bytes(text);
    if (n <= ascii) return n;
    size_t at = ascii;
    for (n -= ascii; n > 0 && at < text.size(); --n) at += char_bytes(text, at);
    return at;
}

size_t find_text(std::string_view text, std::string_view wanted, size_t from) {
    if (from > text.size()) return std::string_view::npos;
    if (wanted.empty()) return from;
    const void* const found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
    return found == nullptr ? std::string_view::npos
                            : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t rfind_text(std::string_view text, std::string_view wanted) {
    if (wanted.size() <= 16) return text.rfind(wanted);
    const std::string reversed(text.rbegin(), text.rend()), reversed_wanted(wanted.rbegin(), wanted.rend());
    const size_t found = find_text(reversed, reversed_wanted);
    return found == std::string_view::npos ? found : text.size() - found - wanted.size();
}

size_t leading_space(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        const Utf8Char c = utf8_char_at(text, at);
        if (c.bytes == 0 || !is_space(c.code_point)) break;
        at += c.bytes;
    }
    return at;
}

size_t trailing_space(std::string_view text) {
    size_t end = text.size();
    while (end > 0) {
        const Utf8Char c = utf8_char_before(text, end);
        if (c.bytes == 0 || !is_space(c.code_point)) break;
        end -= c.bytes;
    }
    return text.size() - end;
}

Value part_of(const Value& text, size_t begin, size_t end, Arena& arena) {
    Value part = text;
    part.size = end - begin;
    if (!text.is_mixed) {
        part.bytes = text.bytes + begin;
        return part;
    }
    const MixedText& whole = *text.mixed;
    const Span* const last = whole.spans + whole.span_count;
    const Span* from =
        std::upper_bound(whole.spans, last, begin, [](size_t at, const Span& span) { return at < span.end; });
    const Span* to = from;
    while (to != last && to->begin < end) ++to;
    const auto count = static_cast<size_t>(to - from);
    if (count == 0 || (count == 1 && from->begin <= begin && from->end >= end)) {
        part.is_mixed = false;
        part.origin = count == 0 ? kTemplateOrigin : from->origin;
        part.bytes = whole.bytes + begin;
        return part;
    }
    Span* const spans = arena.array<Span>(count);
    for (size_t i = 0; i < count; ++i)
        spans[i] = {std::max(from[i].begin, begin) - begin, std::min(from[i].end, end) - begin, from[i].origin};
    part.mixed = arena.make<MixedText>(whole.bytes + begin, spans, count);
    return part;
}

void TextBuilder::check(size_t more_bytes) const {
    if (more_bytes > max_bytes_ || text_.size() > max_bytes_ - more_bytes)
        refuse("makes a text of more than " + std::to_string(max_bytes_) + " bytes");
}

void TextBuilder::mark(size_t begin, size_t end, uint32_t origin) {
    if (begin == end) return;
    if (!spans_.empty() && spans_.back().end == begin && spans_.back().origin == origin)
        spans_.back().end = end;
    else
        spans_.push_back({begin, end, origin});
}

void TextBuilder::add(const Value& text) {
    if (!text.is_mixed) {
        add(text.text(), text.origin);
        return;
    }
    check(text.size);
    const size_t begin = text_.size();
    text_.append(text.text());
    for (size_t i = 0; i < text.mixed->span_count; ++i) {
        const Span& span = text.mixed->spans[i];
        mark(begin + span.begin, begin + span.end, span.origin);
    }
}

void TextBuilder::add_part(const Value& text, size_t begin, size_t end) {
    if (!text.is_mixed) {
        add(text.text().substr(begin, end - begin), text.origin);
        return;
    }
    check(end - begin);
    const size_t at = text_.size();
    text_.append(text.text().substr(begin, end - begin));
    const Span* const last = text.mixed->spans + text.mixed->span_count;
    const Span* span =
        std::upper_bound(text.mixed->spans, last, begin, [](size_t place, const Span& s) { return place < s.end; });
    for (; span != last && span->begin < end; ++span)
        mark(at + std::max(span->begin, begin) - begin, at + std::min(span->end, end) - begin, span->origin);
}

void TextBuilder::add_char(uint32_t code_point, uint32_t origin) {
    check(4);
    const size_t begin = text_.size();
    append_utf8(text_, code_point);
    if (origin != kTemplateOrigin) mark(begin, text_.size(), origin);
}

void TextBuilder::mark_generated(size_t begin) {
    if (begin == text_.size()) return;
    const auto first =
        std::partition_point(spans_.begin(), spans_.end(), [&](const Span& s) { return s.end <= begin; });
    const std::vector<Span> within(first, spans_.end());
    spans_.erase(first, spans_.end());
    size_t at = begin;  // up to where the new spans reach
    for (const Span& span : within) {
        if (span.begin < begin) spans_.push_back({span.begin, begin, span.origin});
        mark(at, std::max(at, span.begin), kTemplateOrigin | kGenerated);
        mark(std::max(span.begin, begin), span.end, span.origin | kGenerated);
        at = span.end;
    }
    mark(at, text_.size(), kTemplateOrigin | kGenerated);
}

Value TextBuilder::value(Arena& arena) const {
    Value value = Value::text_of(arena.copy(text_));
    if (spans_.empty()) return value;
    if (spans_.size() == 1 && spans_[0].begin == 0 && spans_[0].end == text_.size()) {
        value.origin = spans_[0].origin;
        return value;
    }
    Span* const spans = arena.array<Span>(spans_.size());
    std::copy(spans_.begin(), spans_.end(), spans);
    value.mixed = arena.make<MixedText>(value.bytes, spans, spans_.size());
    value.is_mixed = true;
    return value;
}

uint32_t CharReader::next() {
    last_ = at_;
    const Utf8Char c = utf8_char_at(text_, at_);
    at_ += std::max<size_t>(1, c.bytes);
    return c.bytes == 0 ? 0xfffd : c.code_point;
}

uint32_t CharReader::origin() const {
    if (!value_.is_mixed) return value_.origin;
    const MixedText& mixed = *value_.mixed;
    while (span_ < mixed.span_count && mixed.spans[span_].end <= last_) ++span_;
    return span_ < mixed.span_count && mixed.spans[span_].begin <= last_ ? mixed.spans[span_].origin : kTemplateOrigin;
}

}  // namespace slab::data::jinja
