// Memory that is given back all at once.
//
// Values of a rendering point into one arena and are never freed one by one. So copies are bitwise, a namespace may
// hold itself, and the memory of a rendering has one limit. Only types without a destructor live here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <string_view>
#include <type_traits>
#include <vector>

#include "data/jinja/error.h"

namespace slab::data::jinja {

class Arena {
  public:
    explicit Arena(size_t max_bytes = SIZE_MAX) : left_bytes_(max_bytes) {}

    // Aligned to 8 bytes. Throws a Problem beyond max_bytes.
    char* allocate(size_t bytes) {
        if (bytes > left_bytes_) refuse("makes more text and lists than are allowed for one rendering");
        const size_t rounded = (bytes + 7) & ~size_t{7};
        left_bytes_ -= std::min(left_bytes_, rounded);
        if (rounded > block_left_) new_block(rounded);
        char* const at = block_at_;
        block_at_ += rounded;
        block_left_ -= rounded;
        return at;
    }

    template <class T, class... A>
    T* make(A&&... arguments) {
        static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 8);
        return new (allocate(sizeof(T))) T{std::forward<A>(arguments)...};
    }

    template <class T>
    T* array(size_t count) {  // default-initialised
        static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 8);
        if (count > SIZE_MAX / 2 / sizeof(T)) refuse("makes more text and lists than are allowed for one rendering");
        T* const items = reinterpret_cast<T*>(allocate(count * sizeof(T)));
        std::uninitialized_default_construct_n(items, count);
        return items;
    }

    std::string_view copy(std::string_view text) {
        char* const bytes = allocate(text.size());
        std::copy(text.begin(), text.end(), bytes);
        return {bytes, text.size()};
    }

  private:
    void new_block(size_t wanted_bytes) {
        const size_t bytes = std::max(wanted_bytes, kBlockBytes);
        blocks_.push_back(std::make_unique_for_overwrite<char[]>(bytes));
        block_at_ = blocks_.back().get();
        block_left_ = bytes;
    }

    static constexpr size_t kBlockBytes = size_t{32} << 10;
    std::vector<std::unique_ptr<char[]>> blocks_;
    char* block_at_ = nullptr;
    size_t block_left_ = 0, left_bytes_;
};

}  // namespace slab::data::jinja
