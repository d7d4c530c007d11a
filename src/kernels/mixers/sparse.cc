#include "kernels/mixers/sparse.h"

#include <algorithm>

#include "kernels/pattern_mixer.h"

namespace linattn {
namespace {

enum Kind { kNear, kFar };

// What is near: a band, or the query's own block, in the sequence's order.
PatternLists Near(const MixerOptions& options, int64_t T, int64_t S) {
  const int64_t l = options.sparse.stride;
  const bool strided = options.sparse.pattern == SparsePattern::kStrided;
  PatternLists lists;
  for (int64_t p = S - T; p < S; ++p) {
    const int64_t first = strided ? std::max<int64_t>(0, p - l + 1) : p / l * l;
    lists.first.push_back(first);
    lists.end.push_back(options.causal ? p + 1 : std::min(S, (strided ? p : first) + l));
  }
  return lists;
}

// Places with the same remainder by the stride stand together: what a query sees is a run again.
PatternLists EveryStride(const MixerOptions& options, int64_t T, int64_t S) {
  const int64_t l = options.sparse.stride;
  PatternLists lists;
  for (int64_t r = 0; r < std::min(l, S); ++r) {
    const int64_t first = static_cast<int64_t>(lists.keys.size());
    const int64_t end = first + (S - r + l - 1) / l;
    for (int64_t p = r; p < S; p += l) {
      lists.keys.push_back(p);
      if (p < S - T) continue;
      lists.queries.push_back(p - (S - T));
      lists.first.push_back(first);
      lists.end.push_back(options.causal ? static_cast<int64_t>(lists.keys.size()) : end);
    }
  }
  return lists;
}

// The summaries of all blocks, behind the places that see none and so themselves.
PatternLists Summaries(const MixerOptions& options, int64_t T, int64_t S) {
  const int64_t l = options.sparse.stride, before = l - options.sparse.summary;
  const int64_t lonely = options.causal || S <= before ? std::min(S, before) : 0;
  PatternLists lists;
  for (int64_t p = 0; p < S; ++p) {
    if (p < lonely || p % l >= before) lists.keys.push_back(p);
    if (p < S - T) continue;
    lists.first.push_back(std::min(p, lonely));
    lists.end.push_back(static_cast<int64_t>(lists.keys.size()));
  }
  if (!options.causal && lonely == 0)
    std::fill(lists.end.begin(), lists.end.end(), static_cast<int64_t>(lists.keys.size()));
  return lists;
}

PatternLists Lists(const MixerOptions& options, int64_t T, int64_t S, int64_t kind) {
  if (kind == kNear) return Near(options, T, S);
  return options.sparse.pattern == SparsePattern::kStrided ? EveryStride(options, T, S)
                                                           : Summaries(options, T, S);
}

void ReadSummaries(const MixerOptions& options, int64_t t, CacheReader& reader) {
  const int64_t l = options.sparse.stride, c = options.sparse.summary;
  if (t < l - c) return reader.Add(t);
  for (int64_t first = l - c; first <= t; first += l) reader.Add(first, std::min(c, t + 1 - first));
}

void Read(const MixerOptions& options, const CacheLayout&, int64_t t, int64_t kind,
          CacheReader& reader) {
  const int64_t l = options.sparse.stride;
  const bool strided = options.sparse.pattern == SparsePattern::kStrided;
  if (kind == kNear) {
    const int64_t first = strided ? std::max<int64_t>(0, t - l + 1) : t / l * l;
    reader.Add(first, t + 1 - first);
  } else if (strided) {
    reader.Add(t % l, t / l + 1, l);
  } else {
    ReadSummaries(options, t, reader);
  }
}

constexpr Pattern kPattern = {
    .kinds = 2, .check = CheckSparseOptions, .lists = Lists, .read = Read};

// For the pattern that options have unless told: half of the heads see l keys, half T/l, halved
// again if causal.
double Flops(const MixerDims& d, bool causal) {
  const double l = static_cast<double>(std::min(MixerOptions().sparse.stride, d.T)), T = d.T;
  const double keys = causal ? (l + T / l / 2) / 2 : (2 * l + T / l) / 2;
  return 2.0 * static_cast<double>(d.K + d.V) * static_cast<double>(d.B * d.H) * T * keys;
}

}  // namespace

constinit const Mixer k_sparse = PatternMixer<k_sparse, kPattern>(
    {.name = "sparse",
     .summary = "softmax over strided or fixed patterns of keys, about 2 root(T) of T",
     .self_only = true,
     .tolerance = {.forward = 5e-6,
                   .backward = 2e-5,
                   .reason = "blocked float32 sums; exp turns the rounding of a score into a "
                             "relative error"},
     .forward_ref = sparse_ref::Forward,
     .backward_ref = sparse_ref::Backward,
     .flops = Flops});

}  // namespace linattn
