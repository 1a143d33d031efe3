// In squares, so that both sides are read and written a cache line at a time.
#include "train/files/transpose.h"

#include <algorithm>

namespace slab::train {

void transpose(const float* src, size_t rows, size_t cols, float* dst) {
    constexpr size_t kSide = 16;
    for (size_t row0 = 0; row0 < rows; row0 += kSide)
        for (size_t col0 = 0; col0 < cols; col0 += kSide)
            for (size_t row = row0; row < std::min(rows, row0 + kSide); ++row)
                for (size_t col = col0; col < std::min(cols, col0 + kSide); ++col)
                    dst[col * rows + row] = src[row * cols + col];
}

}  // namespace slab::train
