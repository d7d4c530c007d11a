#pragma once

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "base/huge_pages.h"

namespace linattn {

// Floats that start as zero, aligned to a cache line. Pages that are never touched cost no memory,
// so a key/value cache may be sized for the longest sequence.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(int64_t size) : size_(size) {
    Check(size >= 0 && size < (int64_t{1} << 56), "runtime", "a buffer of {} floats is impossible",
          size);
    const size_t bytes = static_cast<size_t>(size) * sizeof(float);
    memory_.reset(static_cast<float*>(AllocateOnHugePages(bytes)));
    Check(memory_ != nullptr, "runtime", "not enough memory for {} bytes", bytes);
  }

  float* data() { return memory_.get(); }
  const float* data() const { return memory_.get(); }
  int64_t size() const { return size_; }
  // Grows to at least `size` floats; contents are lost if it does.
  void Reserve(int64_t size) {
    if (size > size_) *this = FloatBuffer(size);
  }

 private:
  struct Free {
    void operator()(float* p) const { FreeOnHugePages(p); }
  };
  std::unique_ptr<float, Free> memory_;
  int64_t size_ = 0;
};

}  // namespace linattn
