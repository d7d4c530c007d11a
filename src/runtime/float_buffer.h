#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/error.h"

namespace linattn {

// Floats that start as zero, aligned to a cache line. Pages that are never touched cost no memory,
// so a key/value cache may be sized for the longest sequence.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(int64_t size) : size_(size) {
    Check(size >= 0 && size < (int64_t{1} << 56), "runtime", "a buffer of {} floats is impossible",
          size);
    const size_t bytes = static_cast<size_t>(size) * sizeof(float) + kAlignment;
    memory_.reset(std::calloc(bytes, 1));
    Check(memory_ != nullptr, "runtime", "not enough memory for {} bytes", bytes);
    void* start = memory_.get();
    size_t space = bytes;
    data_ = static_cast<float*>(std::align(kAlignment, bytes - kAlignment, start, space));
  }

  float* data() { return data_; }
  const float* data() const { return data_; }
  int64_t size() const { return size_; }
  // Grows to at least `size` floats; contents are lost if it does.
  void Reserve(int64_t size) {
    if (size > size_) *this = FloatBuffer(size);
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  float* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace linattn
