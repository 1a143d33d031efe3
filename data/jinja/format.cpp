// Formats: what stands between conversions is copied, each conversion is parsed, made and padded.
#include "data/jinja/format.h"

#include <algorithm>
#include <cmath>

#include "data/jinja/evaluator.h"
#include "data/jinja/format_spec.h"

namespace slab::data::jinja {
namespace {

// --- "%s" % values

class Printf {
  public:
    Printf(Evaluator& evaluator, const Value& format, const Value& values)
        : evaluator_(evaluator), format_(format), text_(format.text()), values_(values) {}

    void run(TextBuilder& out) {
        size_t copied = 0;
        for (size_t at = text_.find('%'); at != text_.npos; at = text_.find('%', at)) {
            out.add_part(format_, copied, at);
            ++at;
            conversion(out, at);
            copied = at;
        }
        out.add_part(format_, copied, text_.size());
        const size_t given = values_.type == Type::tuple ? values_.size : 1;
        if (!by_name_ && used_ < given && values_.type != Type::dict && values_.type != Type::list)
            refuse("formats with " + std::to_string(given) + " values, of which " + std::to_string(used_) +
                   " are used");
    }

  private:
    Value value_for(std::string_view name, bool has_name) {
        if (has_name) {
            by_name_ = true;
            if (values_.type != Type::dict) refuse("formats by name with " + described(values_), "a dict");
            const Value* const found = values_.dict->find(name);
            if (found == nullptr) refuse("formats with \"" + std::string(name) + "\", which the dict does not hold");
            return *found;
        }
        const size_t given = values_.type == Type::tuple ? values_.size : 1;
        if (used_ == given) refuse("formats with too few values", "one for each conversion");
        return values_.type == Type::tuple ? values_.items[used_++] : (++used_, values_);
    }

    void conversion(TextBuilder& out, size_t& at) {
        std::string_view name;
        const bool has_name = at < text_.size() && text_[at] == '(';
        if (has_name) {
            const size_t close = text_.find(')', at);
            if (close == text_.npos) refuse("has a format with a name that does not end", "\")\"");
            name = text_.substr(at + 1, close - at - 1);
            at = close + 1;
        }
        Spec spec;
        bool zero = false, left = false;
        for (; at < text_.size(); ++at) {
            const char c = text_[at];
            if (c == '0')
                zero = true;
            else if (c == '-')
                left = true;
            else if (c == '+' || (c == ' ' && spec.sign != '+'))
                spec.sign = c;
            else if (c == '#')
                spec.alternate = true;
            else if (c != ' ')
                break;
        }
        spec.width = digits(text_, at, kMaxWidth, "width");
        if (at < text_.size() && text_[at] == '.') spec.precision = digits(text_, ++at, kMaxPrecision, "precision");
        if (at == text_.size()) refuse("has a format that ends within a conversion");
        spec.type = text_[at++];
        spec.has_type = true;
        spec.align = left ? '<' : '>';
        if (spec.type == '%') return out.add("%");
        convert(out, spec, value_for(name, has_name), zero && !left);
    }

    void convert(TextBuilder& out, Spec& spec, const Value& value, bool zero) {
        if (spec.type == 's' || spec.type == 'r') {
            Evaluator::Scratch shown(evaluator_);
            spec.type == 's' ? add_str(*shown, value) : add_repr(*shown, value);
            return add_text(evaluator_.arena(), out, spec, shown.value());
        }
        if (std::string_view("diufFeEgGxXo").find(spec.type) == std::string_view::npos)
            refuse("has a format with the conversion \"%" + std::string(1, spec.type) + "\"",
                   "%s, %r, %d, %f, %e, %g, %x or %o");
        if (!value.is_number()) refuse("formats " + described(value) + " as a number", "a number");
        Value number = value;
        if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
        if (spec.type == 'd' && value.type == Type::number) {
            if (!(std::abs(value.number) < 9e18)) refuse("formats a number as an integer of more than 64 bits");
            number = Value::of(static_cast<int64_t>(value.number));
        }
        if ((spec.type == 'x' || spec.type == 'X' || spec.type == 'o') && !number.is_whole())
            refuse("formats " + described(value) + " with %" + std::string(1, spec.type), "a whole number");
        if (number.is_whole() && spec.precision >= 0 &&
            std::string_view("dxXo").find(spec.type) != std::string_view::npos)
            refuse("formats an integer with a precision", "a width: \"%03d\"");
        if (zero) {
            spec.fill = "0";
            spec.align = '=';
        }
        add_number(out, spec, number);
    }

    Evaluator& evaluator_;
    const Value& format_;
    std::string_view text_;
    const Value& values_;
    size_t used_ = 0;
    bool by_name_ = false;
};

// --- "{}".format(values)

class Braces {
  public:
    Braces(Evaluator& evaluator, const Value& format, const Arguments& arguments)
        : evaluator_(evaluator), format_(format), text_(format.text()), arguments_(arguments) {}

    void run(TextBuilder& out) {
        size_t copied = 0;
        for (size_t at = text_.find_first_of("{}"); at != text_.npos; at = text_.find_first_of("{}", copied)) {
            const bool doubled = at + 1 < text_.size() && text_[at + 1] == text_[at];
            out.add_part(format_, copied, at + doubled);
            if (doubled) {
                copied = at + 2;
                continue;
            }
            if (text_[at] == '}') refuse("has a format with a \"}\" that closes nothing", "\"}}\" for the character");
            const size_t close = text_.find_first_of("{}", at + 1);
            if (close == text_.npos || text_[close] == '{')
                refuse("has a format with a field that does not end, or a field within it", "\"{name:format}\"");
            field(out, text_.substr(at + 1, close - at - 1));
            copied = close + 1;
        }
        out.add_part(format_, copied, text_.size());
    }

  private:
    void field(TextBuilder& out, std::string_view field) {
        evaluator_.charge(1 + arguments_.keyword_count / 8);
        const size_t colon = field.find(':');
        std::string_view name = field.substr(0, colon);
        const std::string_view spec_text = colon == field.npos ? "" : field.substr(colon + 1);
        char conversion = '\0';
        if (const size_t mark = name.find('!'); mark != name.npos) {
            if (name.size() != mark + 2 || (name[mark + 1] != 's' && name[mark + 1] != 'r'))
                refuse("has a format with the conversion \"" + std::string(name.substr(mark)) + "\"", "!s or !r");
            conversion = name[mark + 1];
            name = name.substr(0, mark);
        }
        Value value = value_of(name);
        if (conversion != '\0') {
            Evaluator::Scratch shown(evaluator_);
            conversion == 's' ? add_str(*shown, value) : add_repr(*shown, value);
            value = shown.value();
        }
        if (spec_text.empty()) return add_str(out, value);
        const Spec spec = spec_of(spec_text);
        if (value.is_text()) {
            if (spec.type != 's' || spec.align == '=' || spec.sign != '-' || spec.separator != '\0' || spec.alternate)
                refuse("formats text with \"" + std::string(spec_text.substr(0, 40)) + "\"", "a format of texts");
            return add_text(evaluator_.arena(), out, spec, value);
        }
        if (!value.is_number()) refuse("formats " + described(value) + " with a width or type", "text or a number");
        add_with(out, spec, value, spec_text);
    }

    static void add_with(TextBuilder& out, Spec spec, const Value& value, std::string_view text) {
        const bool is_whole_type = std::string_view("dbxXo").find(spec.type) != std::string_view::npos;
        if ((spec.type == 's' && spec.has_type) || (is_whole_type && !value.is_whole()) ||
            (value.is_whole() && spec.precision >= 0 && (is_whole_type || !spec.has_type)))
            refuse("formats a number with \"" + std::string(text.substr(0, 40)) + "\"", "a format of such numbers");
        if (!spec.has_type && value.is_whole()) spec.type = 'd';
        add_number(out, spec, value);
    }

    // "", "0", "name", "0.attribute", "name[key]"
    Value value_of(std::string_view name) {
        const size_t end = std::min(name.find_first_of(".["), name.size());
        const std::string_view first = name.substr(0, end);
        Value value = first_value(first);
        for (size_t at = end; at < name.size();) {
            if (name[at] == '.') {
                const size_t after = std::min(name.find_first_of(".[", at + 1), name.size());
                if (after == at + 1) refuse("has a format with an attribute without a name");
                value = evaluator_.attribute_of(value, name.substr(at + 1, after - at - 1));
                at = after;
                continue;
            }
            const size_t close = name.find(']', at);
            if (name[at] != '[' || close == name.npos || close == at + 1)
                refuse("has a format with the field \"" + std::string(name.substr(0, 40)) + "\"", "\"name[key]\"");
            const std::string_view key = name.substr(at + 1, close - at - 1);
            const bool is_number = key.find_first_not_of("0123456789") == key.npos;
            size_t digit = 0;
            value = evaluator_.item_of(
                value, is_number ? Value::of(digits(key, digit, 1'000'000, "number")) : Value::text_of(key));
            at = close + 1;
        }
        return value;
    }

    Value first_value(std::string_view name) {
        const bool is_number = name.find_first_not_of("0123456789") == name.npos;
        if (!is_number) {
            const Value* const found = arguments_.keyword(name);
            if (found == nullptr) refuse("formats with \"" + std::string(name) + "\", which is not given");
            return *found;
        }
        if (name.empty() ? next_ < 0 : next_ > 0)
            refuse("has a format with numbered and with empty fields", "one kind");
        size_t at = 0;
        const int64_t index = name.empty() ? next_++ : (next_ = -1, digits(name, at, 1'000'000, "number"));
        if (index >= static_cast<int64_t>(arguments_.count))
            refuse("formats with too few values", "one for each field");
        return arguments_.values[index];
    }

    Evaluator& evaluator_;
    const Value& format_;
    std::string_view text_;
    const Arguments& arguments_;
    int64_t next_ = 0;  // of the empty fields; -1 once a field has a number
};

}  // namespace

Value printf_format(Evaluator& evaluator, const Value& format, const Value& values) {
    if (format.is_safe) refuse("formats a text marked safe, which is not implemented");
    Evaluator::Scratch out(evaluator);
    Printf(evaluator, format, values).run(*out);
    evaluator.charge_text(out->size());
    return out.value();
}

Value brace_format(Evaluator& evaluator, const Value& format, const Arguments& arguments) {
    Evaluator::Scratch out(evaluator);
    Braces(evaluator, format, arguments).run(*out);
    evaluator.charge_text(out->size());
    return out.value();
}

void add_escaped(TextBuilder& out, const Value& text) {
    const std::string_view bytes = text.text();
    size_t copied = 0;
    for (size_t at = bytes.find_first_of("&<>'\""); at != bytes.npos; at = bytes.find_first_of("&<>'\"", copied)) {
        out.add_part(text, copied, at);
        const char c = bytes[at];
        out.add(c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '\'' ? "&#39;" : "&#34;");
        copied = at + 1;
    }
    out.add_part(text, copied, bytes.size());
}

}  // namespace slab::data::jinja
