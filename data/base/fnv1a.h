// FNV-1a, 64 bits: tells contents apart where nobody forges them. Its numbers are kept in checkpoints and compared
// between runs, so its constants stay. Source: Fowler, Noll, Vo (RFC 9923).
#pragma once

#include <cstddef>
#include <cstdint>

namespace slab::train {

class Fnv1a {
  public:
    void add(const void* bytes /*[count]*/, size_t count) {
        for (size_t i = 0; i < count; ++i) value_ = (value_ ^ static_cast<const unsigned char*>(bytes)[i]) * kPrime;
    }
    uint64_t value() const { return value_; }

  private:
    static constexpr uint64_t kPrime = 0x100000001b3;
    uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace slab::train
