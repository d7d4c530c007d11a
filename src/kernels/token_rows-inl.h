// The rows of one head, one a token, between an array of any float type and dense float32. Included
// once a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_TOKEN_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_TOKEN_ROWS_INL_H_
#undef LINATTN_KERNELS_TOKEN_ROWS_INL_H_
#else
#define LINATTN_KERNELS_TOKEN_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/mixer.h"
#include "kernels/narrow-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Row i is array(tokens.row, tokens[i], head, :), with array [B,T,heads,C], or [B,T,heads] as C
// = 1.
struct TokenRows {
  const Array& array;
  const TokenList& tokens;
  int64_t head;
  int64_t channels() const { return array.rank == 4 ? array.shape[3] : 1; }
};

// Rows are short: a call of memcpy costs as much as the copy.
HWY_INLINE void CopyRow(const float* HWY_RESTRICT x, int64_t n, float* HWY_RESTRICT y) {
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR { store(load(x + i), y + i); });
}

template <class T>
HWY_INLINE void WidenRow(const T* HWY_RESTRICT x, int64_t n, float* HWY_RESTRICT y) {
  for (int64_t i = 0; i < n; i += kLanes) StoreRow(LoadRow(x + i, n - i), y + i, n - i);
}

template <class T>
HWY_INLINE void NarrowRow(const float* HWY_RESTRICT x, int64_t n, T* HWY_RESTRICT y) {
  for (int64_t i = 0; i < n; i += kLanes) StoreRow(LoadRow(x + i, n - i), y + i, n - i);
}

// Rows [begin, begin + n) -> y [n,C].
inline void LoadRows(const TokenRows& rows, int64_t begin, int64_t n, float* y) {
  const auto& [array, tokens, head] = rows;
  const int64_t C = rows.channels();
  for (int64_t i = begin; i < begin + n; ++i, y += C) {
    if (array.dtype == DType::kBF16) {
      WidenRow(array.At<BF16>(tokens.row, tokens[i], head), C, y);
    } else if (array.dtype == DType::kF16) {
      WidenRow(array.At<F16>(tokens.row, tokens[i], head), C, y);
    } else {
      CopyRow(array.At<float>(tokens.row, tokens[i], head), C, y);
    }
  }
}

// Rows [begin, begin + n) <- x [n,C]; nothing if the array is absent.
inline void StoreRows(const TokenRows& rows, int64_t begin, int64_t n, const float* x) {
  const auto& [array, tokens, head] = rows;
  if (!array.present()) return;
  const int64_t C = rows.channels();
  for (int64_t i = begin; i < begin + n; ++i, x += C) {
    if (array.dtype == DType::kBF16) {
      NarrowRow(x, C, array.At<BF16>(tokens.row, tokens[i], head));
    } else if (array.dtype == DType::kF16) {
      NarrowRow(x, C, array.At<F16>(tokens.row, tokens[i], head));
    } else {
      CopyRow(x, C, array.At<float>(tokens.row, tokens[i], head));
    }
  }
}

// y += x, row by row.
HWY_INLINE void AddRow(const float* HWY_RESTRICT x, int64_t n, float* HWY_RESTRICT y) {
  ForEachVector(n, [=](auto load, auto store, int64_t i)
                       HWY_ATTR { store(hn::Add(load(y + i), load(x + i)), y + i); });
}

template <class T>
HWY_INLINE void AddRow(const float* HWY_RESTRICT x, int64_t n, T* HWY_RESTRICT y) {
  for (int64_t i = 0; i < n; i += kLanes)
    StoreRow(hn::Add(LoadRow(y + i, n - i), LoadRow(x + i, n - i)), y + i, n - i);
}

// Rows [begin, begin + n) += x [n,C]; nothing if the array is absent.
inline void AddRows(const TokenRows& rows, int64_t begin, int64_t n, const float* x) {
  const auto& [array, tokens, head] = rows;
  if (!array.present()) return;
  const int64_t C = rows.channels();
  for (int64_t i = begin; i < begin + n; ++i, x += C) {
    if (array.dtype == DType::kBF16) {
      AddRow(x, C, array.At<BF16>(tokens.row, tokens[i], head));
    } else if (array.dtype == DType::kF16) {
      AddRow(x, C, array.At<F16>(tokens.row, tokens[i], head));
    } else {
      AddRow(x, C, array.At<float>(tokens.row, tokens[i], head));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
