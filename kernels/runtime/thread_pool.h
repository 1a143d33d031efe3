// The one pool of threads that CPU kernels run on.
//
// Work is cut into tiles by the caller, as a function of shapes alone; which thread takes which tile is left to chance.
// Every output element is written by exactly one tile, so bits do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace slab {

class ThreadPool {
  public:
    // threads: how many work at once, the caller included; 0 takes the machine's number of cores. Throws
    // std::invalid_argument on a number out of range, DeviceError when the system does not give that many.
    explicit ThreadPool(int threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const;

    // Calls tile(i) once for each i < tiles and returns when all are done. The caller works too. An exception in a tile
    // is thrown here after the others have stopped (the first one counts). Tiles must not call parallel_for themselves.
    void parallel_for(size_t tiles, const std::function<void(size_t)>& tile);

    // Cuts [0, items) into runs of at most items_per_tile (a function of shapes) and calls range(begin, end) for each.
    void parallel_ranges(size_t items, size_t items_per_tile, const std::function<void(size_t, size_t)>& range);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace slab
