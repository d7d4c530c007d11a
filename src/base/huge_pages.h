#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace linattn {

// Zeroed memory on pages of 2 MB where the system has them, aligned to 64 bytes. Requests share
// pages: many matrices of a model lie side by side. What is streamed from memory comes about twice
// as fast as from pages of 4 KB, and from L3 half as fast again, since addresses need no look-up.
// Pages that are never touched cost nothing. Null if there is no memory. Any thread may call.
void* AllocateOnHugePages(size_t bytes);
void FreeOnHugePages(void* memory);

template <class T>
struct HugePageAllocator {
  using value_type = T;
  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>&) {}
  T* allocate(size_t n) {
    void* memory = AllocateOnHugePages(n * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { FreeOnHugePages(memory); }
  friend bool operator==(const HugePageAllocator&, const HugePageAllocator&) { return true; }
};

// For what is read over and over: weights.
template <class T>
using HugePageVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace linattn
