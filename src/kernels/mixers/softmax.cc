#include "kernels/mixers/softmax.h"

#include <algorithm>

#include "kernels/pattern_mixer.h"

namespace linattn {
namespace {

PatternLists Lists(const MixerOptions& options, int64_t T, int64_t S, int64_t) {
  PatternLists lists;
  lists.sinks = options.window > 0 ? options.sinks : 0;
  for (int64_t t = 0; t < T; ++t) {
    const int64_t end = options.causal ? t + S - T + 1 : S;
    lists.end.push_back(end);
    lists.first.push_back(options.window > 0 ? end - std::min(end, options.window) : 0);
  }
  return lists;
}

// The slots hold what is visible, and nothing else.
void Read(const MixerOptions&, const CacheLayout& cache, int64_t length, int64_t,
          CacheReader& reader) {
  reader.Add(0, std::min(length + 1, cache.slots));
}

constexpr Pattern kPattern = {
    .kinds = 1, .check = [](const MixerOptions&) {}, .lists = Lists, .read = Read};

// Pairs of a query and a key that it sees, in one head of one row.
double Pairs(const MixerDims& d, bool causal) {
  const double T = d.T, S = d.S;
  return causal ? T * (S - T) + T * (T + 1) / 2 : T * S;
}

double Flops(const MixerDims& d, bool causal) {
  return 2.0 * static_cast<double>(d.K + d.V) * static_cast<double>(d.B * d.H) * Pairs(d, causal);
}

}  // namespace

constinit const Mixer k_softmax = PatternMixer<k_softmax, kPattern>(
    {.name = "softmax",
     .summary = "scaled dot-product attention over a cache of keys and values",
     .tolerance = {.forward = 5e-6,
                   .backward = 2e-5,
                   .reason = "blocked float32 sums; exp turns the rounding of a score into a "
                             "relative error"},
     .forward_ref = softmax_ref::Forward,
     .backward_ref = softmax_ref::Backward,
     .flops = Flops});

}  // namespace linattn
