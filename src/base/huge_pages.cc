#include "base/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace linattn {
namespace {

constexpr size_t kPage = size_t{2} << 20, kLine = 64;
constexpr size_t kSlab = 16 * kPage;  // what small requests share
constexpr size_t kSmall = 2 * kPage;  // larger ones have a mapping each, which goes with them

// The start of a mapping, which holds requests one behind the other and goes with the last of them.
struct alignas(kLine) Slab {
  size_t bytes = 0;  // of the mapping
  size_t used = 0, live = 0;
};
// Before every request.
struct alignas(kLine) Header {
  Slab* slab;
};

std::mutex g_mutex;
Slab* g_open = nullptr;  // the one that small requests come from

size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// A mapping of whole pages at a multiple of the page size.
Slab* MapSlab(size_t bytes) {
  bytes = RoundUp(bytes, kPage);
  void* memory =
      mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(memory);
  auto* at = reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(begin), kPage));
  if (at > begin) munmap(begin, static_cast<size_t>(at - begin));
  munmap(at + bytes, static_cast<size_t>(begin + kPage - at));
#ifdef MADV_HUGEPAGE
  madvise(at, bytes, MADV_HUGEPAGE);  // where it is refused, small pages do
#endif
  return new (at) Slab{.bytes = bytes, .used = sizeof(Slab)};
}

void* Take(Slab* slab, size_t bytes) {
  char* at = reinterpret_cast<char*>(slab) + slab->used;
  slab->used += bytes;
  ++slab->live;
  return new (at) Header{slab} + 1;
}

}  // namespace

void* AllocateOnHugePages(size_t bytes) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  bytes = RoundUp(bytes, kLine) + sizeof(Header);
  const std::lock_guard lock(g_mutex);
  if (bytes > kSmall) {
    Slab* own = MapSlab(bytes + sizeof(Slab));
    return own ? Take(own, bytes) : nullptr;
  }
  if (g_open == nullptr || g_open->used + bytes > g_open->bytes) {
    Slab* fresh = MapSlab(kSlab);
    if (fresh == nullptr) return nullptr;
    g_open = fresh;
  }
  return Take(g_open, bytes);
}

void FreeOnHugePages(void* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(g_mutex);
  Slab* slab = (static_cast<Header*>(memory) - 1)->slab;
  if (--slab->live > 0) return;
  if (slab == g_open) g_open = nullptr;
  munmap(slab, slab->bytes);
}

}  // namespace linattn
