#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/blocked_softmax.h"

// What the mixers that keep their tokens are made of, for the SIMD target of the machine they run
// on: the blocked softmax over lists of tokens, and one query's way over the rows of a cache.
namespace linattn {

// The queries [begin, begin + kTileQueries) of one head of a group, all that it sees; forward. With
// group.add, o must be F32 and norm present. scratch: ForwardState's floats.
void AttendTile(const SoftmaxGroup& group, int64_t head, int64_t begin, float* scratch);
// d_q, d_k and d_v of one group from the o and norm of all that its queries see. scratch:
// BackwardState's floats.
void AttendBackward(const SoftmaxGroup& group, float* scratch);
// The same by share.count threads: each call writes d_k and d_v of its keys and leaves the rest in
// its scratch, where JoinShares finds it, `floats` apart: d_q of the queries from q0 to q0 +
// kQueries.
void AttendShare(const SoftmaxGroup& group, KeyShare share, float* scratch);
void JoinShares(const SoftmaxGroup& group, int64_t q0, int64_t shares, int64_t floats,
                float* scratch);

// The rows of one head, one a token: array(tokens.row, tokens[i], head, :), array [B,T,heads,C].
struct HeadRows {
  const Array& array;
  const TokenList& tokens;
  int64_t head;
};
// to = from, as many rows as `from` has tokens, of any float types; nothing if `to` is absent.
// Allocates if neither side is F32.
void CopyRows(const HeadRows& from, const HeadRows& to);

constexpr int64_t kCachedKeys = 64;  // rows taken in at once; a multiple of all vector lengths

// One query on its way over a cache: (21) to (23) of docs/mixers.md.
struct CachedQuery {
  const float* q;  // [K]
  float* o;        // [V], while keys go by the sum of exp(score - max) v
  int64_t K, V;
  float scale;
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
};

// The keys and values of one head in a cache: rows of K and of V elements, F32 or BF16.
struct CachedHead {
  void* k;
  void* v;
  DType dtype;
};

// A query's way over a cache: give it every row that it sees, in any order, then Finish. A row
// given n times counts n times.
class CacheReader {
 public:
  CacheReader(const CachedQuery& query, const CachedHead& head);
  void Add(int64_t row) {
    rows_[count_++] = row;
    if (count_ == kCachedKeys) Flush();
  }
  void Add(int64_t first, int64_t count, int64_t step = 1) {
    while (count > 0) {
      const int64_t n = std::min(count, kCachedKeys - count_);
      for (int64_t i = 0; i < n; ++i) rows_[count_ + i] = first + i * step;
      first += n * step, count -= n, count_ += n;
      if (count_ == kCachedKeys) Flush();
    }
  }
  void Finish();  // o is what the query gets; 0 if it saw nothing

 private:
  void Flush();
  CachedQuery query_;
  CachedHead head_;
  int64_t rows_[kCachedKeys];
  int64_t count_ = 0;
};

}  // namespace linattn
