// Which block of an attention kernel works on which tile, and which tiles documents let it skip.
//
// Causal tiles differ in length. The longest are started first, so that the short ones fill the gaps at the end. Heads
// are taken in groups whose keys and values stay in the L2 cache. Neither changes a bit.
#pragma once

#include <cstdint>

namespace slab::attn {

// Tiles of all heads, group by group, within a group by length.
struct Schedule {
    int tiles;     // of a head
    int heads;     // B * NH, or B * NKV
    int group;     // heads worked on together
    bool vectors;  // 16-byte loads and stores are possible

    struct Item {
        int head, rank;  // rank 0 is the longest tile of the head
    };
    __device__ Item item(unsigned block) const {
        const unsigned per_group = static_cast<unsigned>(tiles) * static_cast<unsigned>(group);
        const int first = static_cast<int>(block / per_group) * group;
        const int members = heads - first < group ? heads - first : group;
        const int within = static_cast<int>(block % per_group);
        return {first + within % members, within / members};
    }
};

// Where a row of tokens is cut into documents. doc_start never falls along a row. So a tile's first row reaches
// farthest back, and the tiles that see a key are neighbours.
struct Documents {
    const int32_t* start;  // [T] of this row of the batch, or null
    int T_len;

    // Of row b of the batch.
    template <class Args>
    static __device__ Documents of_row(const Args& a, int b) {
        return {a.doc_start ? a.doc_start + static_cast<size_t>(b) * a.T_len : nullptr, a.T_len};
    }
    __device__ int of(int t) const { return start ? start[t < T_len ? t : T_len - 1] : 0; }

    // The number of query tiles, from tile 0 on, whose first row still sees key `key` or an earlier one.
    __device__ int query_tiles_seeing(int key, int tile_rows) const {
        int low = key / tile_rows + 1, high = (T_len + tile_rows - 1) / tile_rows;  // the key's own tile always does
        if (!start || low > high) return high;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (start[middle * tile_rows] <= key)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }
};

}  // namespace slab::attn
