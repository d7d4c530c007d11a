#include "kernels/softmax_kernels.h"

#include <algorithm>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax_kernels.cc"
// clang-format off
#include <hwy/foreach_target.h>  // first, or each target would be compiled twice
#include <hwy/highway.h>
// clang-format on

#include "kernels/blocked_softmax-inl.h"
#include "kernels/cached_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

void RunTile(const SoftmaxGroup& group, int64_t head, int64_t begin, float* scratch) {
  ForwardTile(group, head, begin, scratch);
}

void RunBackward(const SoftmaxGroup& group, KeyShare share, float* scratch) {
  BackwardGroup(group, share, scratch);
}

void RunJoin(const SoftmaxGroup& group, int64_t q0, int64_t shares, int64_t floats,
             float* scratch) {
  JoinBlock(group, q0, shares, floats, scratch);
}

// One of both is F32, or row has room for one.
void RunCopy(const HeadRows& from, const HeadRows& to, float* row) {
  const TokenRows x{from.array, from.tokens, from.head}, y{to.array, to.tokens, to.head};
  for (int64_t i = 0; i < from.tokens.length; ++i) {
    if (to.array.dtype == DType::kF32) {
      LoadRows(x, i, 1, to.array.At<float>(to.tokens.row, to.tokens[i], to.head));
    } else if (from.array.dtype == DType::kF32) {
      StoreRows(y, i, 1, from.array.At<float>(from.tokens.row, from.tokens[i], from.head));
    } else {
      LoadRows(x, i, 1, row);
      StoreRows(y, i, 1, row);
    }
  }
}

void AttendRows(CachedQuery& query, const CachedHead& head, const int64_t* rows, int64_t n) {
  if (head.dtype == DType::kBF16)
    AttendRowsOf(query, static_cast<const BF16*>(head.k), static_cast<const BF16*>(head.v), rows,
                 n);
  else
    AttendRowsOf(query, static_cast<const float*>(head.k), static_cast<const float*>(head.v), rows,
                 n);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {

HWY_EXPORT(RunTile);
HWY_EXPORT(RunBackward);
HWY_EXPORT(RunJoin);
HWY_EXPORT(RunCopy);
HWY_EXPORT(AttendRows);

void AttendTile(const SoftmaxGroup& group, int64_t head, int64_t begin, float* scratch) {
  HWY_DYNAMIC_DISPATCH(RunTile)(group, head, begin, scratch);
}

void AttendBackward(const SoftmaxGroup& group, float* scratch) {
  HWY_DYNAMIC_DISPATCH(RunBackward)(group, {}, scratch);
}

void AttendShare(const SoftmaxGroup& group, KeyShare share, float* scratch) {
  HWY_DYNAMIC_DISPATCH(RunBackward)(group, share, scratch);
}

void JoinShares(const SoftmaxGroup& group, int64_t q0, int64_t shares, int64_t floats,
                float* scratch) {
  HWY_DYNAMIC_DISPATCH(RunJoin)(group, q0, shares, floats, scratch);
}

void CopyRows(const HeadRows& from, const HeadRows& to) {
  if (!to.array.present()) return;
  std::vector<float> row;
  if (from.array.dtype != DType::kF32 && to.array.dtype != DType::kF32)
    row.resize(from.array.shape[3]);
  HWY_DYNAMIC_DISPATCH(RunCopy)(from, to, row.data());
}

CacheReader::CacheReader(const CachedQuery& query, const CachedHead& head)
    : query_(query), head_(head) {
  std::fill_n(query_.o, query_.V, 0.0f);
}

void CacheReader::Flush() {
  HWY_DYNAMIC_DISPATCH(AttendRows)(query_, head_, rows_, count_);
  count_ = 0;
}

void CacheReader::Finish() {
  if (count_ > 0) Flush();
  const float sum = query_.sum;
  if (sum == 0) return;
  for (int64_t c = 0; c < query_.V; ++c) query_.o[c] /= sum;
}

}  // namespace linattn
#endif  // HWY_ONCE
