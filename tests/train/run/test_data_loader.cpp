// The loader's order is a function of (seed, epoch); every row comes once an epoch, and any sample can be the next.
// Masks and documents reach targets and attention as data/token_file.h says.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/cross_entropy.h"
#include "tests/temporary_files.h"
#include "tests/token_files.h"
#include "train/run/data_loader.h"
#include "train/run/side_file.h"
#include "train/spec/micro_batch.h"

using namespace slab;
using namespace slab::train;
using namespace slab::test;
using data::TokenFile;

namespace {

constexpr int T = 5;

// Token i of the file is i: a row's tokens say where it lies.
TokenFile counting_file(const FreshDirectory& dir, uint32_t tokens) {
    std::vector<uint32_t> ids(tokens);
    std::iota(ids.begin(), ids.end(), 0u);
    write_token_file(dir.path / "count.bin", ids);
    return TokenFile(dir.path / "count.bin");
}

// Rows of samples first .. first + n - 1, as their numbers in the file.
std::vector<int> rows_of(DataLoader& loader, uint64_t first, uint64_t n) {
    std::vector<int> rows;
    for (uint64_t s = first; s < first + n; ++s) rows.push_back(loader.batch(s, 1).tokens[0] / T);
    return rows;
}

bool is_permutation_of_all(std::vector<int> rows, int first = 0) {
    std::sort(rows.begin(), rows.end());
    for (size_t i = 0; i < rows.size(); ++i)
        if (rows[i] != first + static_cast<int>(i)) return false;
    return true;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("data loader: a file made of rows wants its own length") {
        data::TokenMemory memory(100, T);
        for (uint32_t i = 0; i <= 2 * T; ++i) memory.append(i, i % T == 0 ? data::kMaskDocumentStart : 1);
        const TokenFile file("rows.bin", std::move(memory));
        DataLoader loader(file, T, 100, 1, false);
        CHECK(loader.rows() == 2);
        const MicroBatch batch = loader.batch(0, 2);
        CHECK(batch.targets == std::vector<int32_t>{1, 2, 3, 4, kIgnoreTarget, 6, 7, 8, 9, kIgnoreTarget});
        CHECK(batch.doc_start == std::vector<int32_t>(2 * T, 0));
        for (const int other : {T - 1, T + 1, 2 * T}) {
            const std::string error = error_of([&] { DataLoader(file, other, 100, 1, false); });
            CHECK(has(error, "rows.bin: was made for --sequence-len 5"));
            CHECK(has(error, "has --sequence-len " + std::to_string(other)));
        }
    }

    TEST_CASE("data loader: targets are counted as their batch has them, with a mask or without, wherever it begins") {
        const FreshDirectory dir;
        constexpr uint32_t kTokens = 7 * T + 3;
        std::vector<uint32_t> ids(kTokens);
        std::iota(ids.begin(), ids.end(), 0u);
        std::vector<uint8_t> mask;  // documents begin inside of rows and at their beginnings
        for (uint32_t i = 0; i < kTokens; ++i)
            mask.push_back(static_cast<uint8_t>((i % 3 != 1 ? data::kMaskTarget : 0) |
                                                (i % 8 == 0 || i % T == 0 ? data::kMaskDocumentStart : 0)));
        write_token_file(dir.path / "plain.bin", ids);
        write_token_file(dir.path / "masked.bin", ids, mask);
        data::TokenMemory memory(100);
        for (uint32_t i = 0; i < kTokens; ++i) memory.append(ids[i], mask[i]);
        const std::vector<TokenFile> files = {TokenFile(dir.path / "plain.bin"), TokenFile(dir.path / "masked.bin"),
                                              TokenFile("memory.bin", std::move(memory))};
        std::set<size_t> counts;
        for (const TokenFile& file : files)
            for (const bool shuffle : {false, true}) {
                CAPTURE(file.path().string());
                DataLoader loader(file, T, 100, 9, shuffle);
                for (const int B : {1, 2, 3, 9})  // 9: across epochs
                    for (uint64_t first = 0; first < 20; ++first) {
                        const size_t count = loader.target_count(first, B);
                        CHECK(count == loader.batch(first, B).target_count());
                        if (B == 1) counts.insert(count);
                    }
            }
        CHECK(counts.size() > 2);
        CHECK(DataLoader(files[0], T, 100, 9, false).target_count(0, 2) == 2 * T);
    }

    TEST_CASE("data loader: a file that is written to fails a count and a batch as data of the run") {
        const FreshDirectory dir;
        DataLoader loader(counting_file(dir, 3 * T + 1), T, 100, 1, false);
        CHECK(loader.target_count(0, 1) == T);
        put(dir.path / "count.bin", "short");
        CHECK_THROWS_AS(loader.batch(0, 1), SideFileError);

        const std::vector<uint32_t> ids(3 * T + 1, 7);
        const std::vector<uint8_t> mask(ids.size(), data::kMaskTarget);
        write_token_file(dir.path / "masked.bin", ids, mask);
        DataLoader masked(TokenFile(dir.path / "masked.bin"), T, 100, 1, false);
        put(dir.path / "masked.mask", "short");
        CHECK_THROWS_AS(masked.target_count(0, 1), SideFileError);
    }

    TEST_CASE("data loader: rows, targets and what is left over") {
        const FreshDirectory dir;
        for (const uint32_t tokens : {T + 1u, 2u * T, 2u * T + 1, 3u * T}) {
            CAPTURE(tokens);
            DataLoader loader(counting_file(dir, tokens), T, 100, 1, false);
            REQUIRE(loader.rows() == (tokens - 1) / T);
            CHECK(loader.unused_tokens() == (tokens - 1) % T);
            for (uint64_t row = 0; row < loader.rows(); ++row) {
                const MicroBatch batch = loader.batch(row, 1);
                CHECK(batch.B == 1);
                CHECK(batch.T == T);
                CHECK(batch.first_sample == row);
                CHECK(batch.doc_start.empty());
                REQUIRE(batch.tokens.size() == T);
                REQUIRE(batch.targets.size() == T);
                for (int t = 0; t < T; ++t) {
                    CHECK(batch.tokens[t] == static_cast<int>(row) * T + t);
                    CHECK(batch.targets[t] == batch.tokens[t] + 1);
                }
            }
        }
    }

    TEST_CASE("data loader: the order is a permutation, new every epoch, and a function of seed and epoch alone") {
        const FreshDirectory dir;
        const TokenFile file = counting_file(dir, 23 * T + 1);
        DataLoader loader(file, T, 1000, 7, true);
        const std::vector<int> first = rows_of(loader, 0, 23), second = rows_of(loader, 23, 23);
        CHECK(is_permutation_of_all(first));
        CHECK(is_permutation_of_all(second));
        CHECK(first != second);
        CHECK_FALSE(std::is_sorted(first.begin(), first.end()));
        CHECK(rows_of(loader, 0, 23) == first);  // back again

        DataLoader same(file, T, 1000, 7, true), other(file, T, 1000, 8, true);
        CHECK(rows_of(same, 23, 23) == second);  // without having seen the first epoch
        const std::vector<int> of_other_seed = rows_of(other, 0, 23);
        CHECK(is_permutation_of_all(of_other_seed));
        CHECK(of_other_seed != first);
    }

    TEST_CASE("data loader: a batch is its samples, also across the end of an epoch, wherever reading starts") {
        const FreshDirectory dir;
        const TokenFile file = counting_file(dir, 7 * T + 1);
        DataLoader loader(file, T, 1000, 3, true);
        for (uint64_t first = 0; first < 16; ++first)
            for (const int B : {1, 2, 4}) {
                DataLoader fresh(file, T, 1000, 3, true);
                const MicroBatch batch = fresh.batch(first, B);
                CHECK(batch.first_sample == first);
                REQUIRE(batch.tokens.size() == static_cast<size_t>(B * T));
                std::vector<int32_t> tokens, targets;
                for (int b = 0; b < B; ++b) {
                    const MicroBatch one = loader.batch(first + static_cast<uint64_t>(b), 1);
                    tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
                    targets.insert(targets.end(), one.targets.begin(), one.targets.end());
                }
                CHECK(batch.tokens == tokens);
                CHECK(batch.targets == targets);
            }
    }

    TEST_CASE("data loader: training and validation rows of one file share no target") {
        const FreshDirectory dir;
        const TokenFile file = counting_file(dir, 9 * T + 1);
        DataLoader train(file, T, 1000, 5, true, 0, 6), val(file, T, 1000, 5, false, 6, 9);
        REQUIRE(train.rows() == 6);
        REQUIRE(val.rows() == 3);
        CHECK(is_permutation_of_all(rows_of(train, 0, 6)));
        CHECK(rows_of(val, 0, 3) == std::vector<int>{6, 7, 8});
        std::set<int32_t> train_targets;
        for (uint64_t s = 0; s < 6; ++s)
            for (const int32_t target : train.batch(s, 1).targets) train_targets.insert(target);
        CHECK(train_targets.size() == 6 * T);
        for (uint64_t s = 0; s < 3; ++s)
            for (const int32_t target : val.batch(s, 1).targets) CHECK(train_targets.count(target) == 0);
    }

    TEST_CASE("data loader: the mask takes targets away, and a document neither predicts nor sees the one before") {
        const FreshDirectory dir;
        constexpr uint8_t t = data::kMaskTarget, d = data::kMaskDocumentStart;
        //                                     row 0                 row 1                   the last target
        const std::vector<uint32_t> tokens = {10, 11, 12, 13, 14, /**/ 15, 16, 17, 18, 19, /**/ 20};
        const std::vector<uint8_t> mask = {d | t, t, 0, d | t, t, /**/ t, d | t, 0, d, t, /**/ t};
        write_token_file(dir.path / "f.bin", tokens, mask);
        DataLoader loader(TokenFile(dir.path / "f.bin"), T, 100, 1, false);
        REQUIRE(loader.rows() == 2);
        const MicroBatch both = loader.batch(0, 2);
        constexpr int32_t no = kIgnoreTarget;
        CHECK(both.tokens == std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
        // 12 and 17 are masked; 13, 16 and 18 begin documents
        CHECK(both.targets == std::vector<int32_t>{11, no, no, 14, 15, no, no, no, 19, 20});
        CHECK(both.doc_start == std::vector<int32_t>{0, 0, 0, 3, 3, 0, 1, 1, 3, 3});
        CHECK(both.target_count() == 5);
    }

    TEST_CASE("data loader: a file without a whole row, or of another vocabulary, is refused with a hint") {
        const FreshDirectory dir;
        const TokenFile file = counting_file(dir, 2 * T);
        const std::string short_file = error_of([&] { DataLoader(file, 2 * T, 100, 1, true); });
        CHECK(has(short_file, "count.bin"));
        CHECK(has(short_file, "holds 10 tokens"));
        CHECK(has(short_file, "--sequence-len 10 needs 11"));
        CHECK(error_of([&] { DataLoader(file, 2 * T - 1, 100, 1, true); }) == "");
        const std::string foreign = error_of([&] { DataLoader(file, T, 9, 1, true); });
        CHECK(has(foreign, "count.bin"));
        CHECK(has(foreign, "token 9 is 9"));
        CHECK(has(foreign, "vocabulary ends at 8"));
        CHECK(error_of([&] { DataLoader(file, T, 10, 1, true); }) == "");
    }
}
