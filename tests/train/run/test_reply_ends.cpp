// The ends of replies are found in the rows, whatever made them.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/fake_tokenizer.h"
#include "tests/temporary_files.h"
#include "tests/token_files.h"
#include "train/run/reply_ends.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;

namespace {

constexpr uint8_t kNo = 0, kYes = data::kMaskTarget, kStart = data::kMaskDocumentStart;

// The ids of the ends in a file of these rows, repeated.
struct Rows {
    FreshDirectory dir;
    std::vector<uint32_t> tokens;
    std::vector<uint8_t> bits;
    void add(const std::vector<uint32_t>& more, const std::vector<uint8_t>& of_more, int times = 10) {
        for (int i = 0; i < times; ++i) {
            tokens.insert(tokens.end(), more.begin(), more.end());
            bits.insert(bits.end(), of_more.begin(), of_more.end());
        }
    }
    std::vector<uint32_t> ends(const std::vector<int64_t>& known, bool with_tokenizer = true) const {
        write_token_file(dir.path / "a.bin", tokens, bits);
        const FakeTokenizer tokenizer = chatml_tokenizer();  // 256 <eos>, 257 <|im_start|>, 258 <|im_end|>
        std::vector<uint32_t> ids;
        const auto given = [&]() -> const data::Tokenizer* { return with_tokenizer ? &tokenizer : nullptr; };
        for (const ReplyEnd& end : reply_ends(data::TokenFile(dir.path / "a.bin"), known, given)) {
            CHECK(end.text == tokenizer.specials[end.id - 256]);
            ids.push_back(end.id);
        }
        return ids;
    }
};

using Ids = std::vector<uint32_t>;

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("reply ends: the special token that ends the targets, unless it is known") {
        Rows chat;
        chat.add({257, 'u', 258, 10, 257, 'a', 'b', 258, 10}, {kStart, kNo, kNo, kNo, kNo, kYes, kYes, kYes, kNo});
        CHECK(chat.ends({256}) == Ids{258});
        CHECK(chat.ends({}) == Ids{258});
        CHECK(chat.ends({256, 258}).empty());
        CHECK(chat.ends({256}, false).empty());

        Rows with_line;  // the template's line feed after the turn is trained on too
        with_line.add({257, 'a', 'b', 258, 10}, {kStart, kYes, kYes, kYes, kYes});
        CHECK(with_line.ends({256}) == Ids{258});
        Rows two;  // documents follow each other without a gap
        two.add({'a', 'b', 256}, {kStart, kYes, kYes});
        two.add({'a', 'b', 258}, {kStart, kYes, kYes});
        CHECK(two.ends({}) == Ids{256, 258});
    }

    TEST_CASE("reply ends: rare ends and ordinary tokens are none") {
        Rows cut;  // rows that are cut end in any token
        cut.add({257, 'a', 'b', 'c'}, {kStart, kYes, kYes, kYes}, 30);
        CHECK(cut.ends({}).empty());
        cut.add({257, 'a', 258}, {kStart, kYes, kYes}, 3);
        CHECK(cut.ends({}).empty());
        cut.add({257, 'a', 258}, {kStart, kYes, kYes}, 1);  // 4 of 34
        CHECK(cut.ends({}) == Ids{258});
        Rows inside;
        inside.add({'a', 258, 'b'}, {kStart, kYes, kYes});
        CHECK(inside.ends({}).empty());
        Rows plain;
        plain.tokens = {'a', 258, 'b', 258};
        CHECK(plain.ends({}).empty());  // no mask
    }
}
