// A file descriptor that is closed with its object.
#pragma once

#include <unistd.h>

#include <utility>

namespace slab::data {

class Descriptor {
  public:
    Descriptor() = default;  // none
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }

    int get() const { return fd_; }
    bool is_open() const { return fd_ >= 0; }

  private:
    int fd_ = -1;
};

}  // namespace slab::data
