#include "kernels/pattern_mixer.h"

#include <hwy/aligned_allocator.h>
#include <omp.h>

#include <algorithm>
#include <deque>

namespace linattn {
namespace {

// The groups of a call. Those of one unit add to the same d_k and d_v, so that one thread owns
// them.
class Plan {
 public:
  Plan(const Pattern& pattern, const MixerInputs& in, const MixerDims& dims,
       const Sequences& sequences) {
    const int64_t heads = dims.H / dims.HV;
    const SoftmaxGroup whole{.in = &in,
                             .queries = {},
                             .keys = {},
                             .kv_head = 0,
                             .head = 0,
                             .heads = heads,
                             .K = dims.K,
                             .V = dims.V,
                             .scale = SoftmaxScale(in.options, dims.K)};
    for (int64_t n = 0; n < dims.N; ++n) {
      std::vector<SoftmaxGroup> kinds;
      for (int64_t kind = 0; kind < pattern.kinds; ++kind)
        kinds.push_back(OfKind(pattern, whole, kind, sequences.queries[n], sequences.keys[n]));
      for (int64_t h = 0; h < dims.HV; ++h) units.push_back(Unit(pattern, kinds, h, heads));
    }
  }

  std::vector<std::vector<SoftmaxGroup>> units;

 private:
  SoftmaxGroup OfKind(const Pattern& pattern, SoftmaxGroup g, int64_t kind,
                      const TokenList& queries, const TokenList& keys) {
    const PatternLists& lists =
        lists_.emplace_back(pattern.lists(g.in->options, queries.length, keys.length, kind));
    g.queries = Reordered(queries, lists.queries);
    g.keys = Reordered(keys, lists.keys);
    g.visible = {.first = lists.first.data(), .end = lists.end.data(), .sinks = lists.sinks};
    return g;
  }

  TokenList Reordered(const TokenList& tokens, const std::vector<int64_t>& places) {
    if (places.empty()) return tokens;
    std::vector<int64_t>& index = indices_.emplace_back();
    for (int64_t place : places) index.push_back(tokens[place]);
    return {.row = tokens.row,
            .begin = 0,
            .length = static_cast<int64_t>(index.size()),
            .index = index.data()};
  }

  // The query heads of key/value head h, one group for each kind that is among them.
  static std::vector<SoftmaxGroup> Unit(const Pattern& pattern,
                                        const std::vector<SoftmaxGroup>& kinds, int64_t h,
                                        int64_t heads) {
    std::vector<SoftmaxGroup> unit;
    for (int64_t head = h * heads; head < h * heads + std::min(heads, pattern.kinds); ++head) {
      SoftmaxGroup& g = unit.emplace_back(kinds[head % pattern.kinds]);
      g.kv_head = h;
      g.head = head;
      g.head_step = pattern.kinds;
      g.heads = (h * heads + heads - head + pattern.kinds - 1) / pattern.kinds;
    }
    return unit;
  }

  std::deque<PatternLists> lists_;
  std::deque<std::vector<int64_t>> indices_;
};

int64_t ForwardFloats(const MixerDims& d) { return ForwardState(d.K, d.V, nullptr).floats; }

int64_t BackwardFloats(const MixerDims& d) {
  return BackwardState(d.H / d.HV, d.T, d.K, d.V, nullptr).floats;
}

// A tile of queries owns its outputs, so that results do not depend on the threads.
void RunForward(const Plan& plan, const MixerOutputs& out, int64_t scratch_floats, float* scratch) {
  struct Tile {
    const SoftmaxGroup* group;
    int64_t head, begin;
  };
  std::vector<Tile> tiles;
  for (const auto& unit : plan.units)
    for (const SoftmaxGroup& g : unit)
      for (int64_t j = 0; j < g.heads; ++j)
        for (int64_t begin = 0; begin < g.queries.length; begin += kTileQueries)
          tiles.push_back({&g, g.Head(j), begin});
  // Causal tiles grow with their place: the largest first, so that none is left over at the end.
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const Tile& a, const Tile& b) { return a.begin > b.begin; });
#pragma omp parallel for schedule(dynamic)
  for (const Tile& tile : tiles) {
    SoftmaxGroup g = *tile.group;
    g.out = &out;
    AttendTile(g, tile.head, tile.begin, scratch + omp_get_thread_num() * scratch_floats);
  }
}

// Backward where each unit, of one group, has `shares` threads. A share keeps its own scratch until
// all are done, and is what it is whichever thread runs it.
void RunShares(const Plan& plan, int64_t shares, int64_t floats, float* scratch) {
  const int64_t units = static_cast<int64_t>(plan.units.size());
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < units * shares; ++i)
    for (const SoftmaxGroup& g : plan.units[i / shares])
      AttendShare(g, {i % shares, shares}, scratch + i * floats);
  for (int64_t u = 0; u < units; ++u) {
    for (const SoftmaxGroup& g : plan.units[u]) {
#pragma omp parallel for
      for (int64_t q0 = 0; q0 < g.queries.length; q0 += kQueries)
        JoinShares(g, q0, shares, floats, scratch + u * shares * floats);
    }
  }
}

// The rows of a cache that tokens [begin, begin + n) of a sequence lie in, as a list of tokens.
TokenList Slots(const CacheLayout& cache, int64_t begin, int64_t n, std::vector<int64_t>& index) {
  index.clear();
  for (int64_t t = begin; t < begin + n; ++t) index.push_back(cache.Slot(t));
  return {.row = 0, .begin = 0, .length = n, .index = index.data()};
}

// Tokens [first, first + n) of in.k and in.v into the cache, as tokens `length` onwards.
void Store(const MixerInputs& in, int64_t first, int64_t n, const CacheLayout& cache, float* state,
           int64_t length) {
  std::vector<int64_t> index;
  const TokenList from{.row = 0, .begin = first, .length = n};
  const TokenList to = Slots(cache, length, n, index);
  for (int64_t h = 0; h < cache.HV; ++h) {
    CopyRows({in.k, from, h}, {cache.keys(state), to, h});
    CopyRows({in.v, from, h}, {cache.values(state), to, h});
  }
}

void Attend(const Pattern& pattern, MixerInputs in, const Array& o, const CacheLayout& cache,
            float* state, int64_t S) {
  in.k = cache.keys(state), in.v = cache.values(state);
  MixerDims dims{.B = 1, .T = in.q.shape[1], .S = S, .H = in.q.shape[2], .HV = cache.HV};
  dims.K = dims.F = cache.K, dims.V = cache.V, dims.N = 1;
  Sequences sequences;
  sequences.queries = {{.row = 0, .begin = 0, .length = dims.T}};
  sequences.keys = {{.row = 0, .begin = 0, .length = S}};
  const Plan plan(pattern, in, dims, sequences);
  const auto scratch = hwy::AllocateAligned<float>(omp_get_max_threads() * ForwardFloats(dims));
  RunForward(plan, {.o = o, .norm = {}, .ST = {}, .zT = {}}, ForwardFloats(dims), scratch.get());
}

// Where new tokens would overwrite what the first of them still sees: a cache without a ring is
// laid out for the call, of what is visible, and the ring brought up to date afterwards.
void PrefillRing(const Pattern& pattern, const MixerInputs& in, const Array& o,
                 const CacheLayout& ring, float* state, int64_t length) {
  const int64_t T = in.q.shape[1], window = ring.slots - ring.sinks;
  std::vector<int64_t> index, first_slots;
  const int64_t kept = std::min(
      length, ring.sinks + std::max<int64_t>(0, std::min(length - ring.sinks, window - 1)));
  const int64_t sinks = std::min(kept, ring.sinks);
  CacheLayout line = ring;
  line.slots = kept + T;
  std::vector<float> block(line.floats());
  Slots(ring, 0, sinks, first_slots);
  Slots(ring, length - (kept - sinks), kept - sinks, index);
  first_slots.insert(first_slots.end(), index.begin(), index.end());
  const TokenList from{.row = 0, .begin = 0, .length = kept, .index = first_slots.data()};
  const TokenList to{.row = 0, .begin = 0, .length = kept};
  for (int64_t h = 0; h < ring.HV; ++h) {
    CopyRows({ring.keys(state), from, h}, {line.keys(block.data()), to, h});
    CopyRows({ring.values(state), from, h}, {line.values(block.data()), to, h});
  }
  Store(in, 0, T, line, block.data(), kept);
  Attend(pattern, in, o, line, block.data(), kept + T);
  Store(in, 0, T, ring, state, length);
}

}  // namespace

int64_t PatternScratchBytes(const MixerDims& dims, int threads) {
  return threads * std::max(ForwardFloats(dims), BackwardFloats(dims)) *
         static_cast<int64_t>(sizeof(float));
}

void PatternForward(const Mixer& mixer, const Pattern& pattern, const MixerInputs& in,
                    const MixerOutputs& out, void* scratch) {
  const MixerDims dims = CheckInputs(mixer, in);
  CheckOutputs(mixer, dims, out);
  pattern.check(in.options);
  const Sequences sequences = ResolveSegments(in, dims);
  CheckFastInputs(mixer, in, sequences);
  ClearOutputs(dims, out, sequences.masked_q);
  RunForward(Plan(pattern, in, dims, sequences), out, ForwardFloats(dims),
             static_cast<float*>(scratch));
}

// One thread owns a unit, or several share its keys where there are fewer units than threads: sums
// over queries and query heads have one order, which depends on the threads only if they share.
void PatternBackward(const Mixer& mixer, const Pattern& pattern, const MixerInputs& in,
                     const MixerOutputs& out, const MixerGradients& gradients, void* scratch) {
  const MixerDims dims = CheckInputs(mixer, in);
  CheckGradients(mixer, in, gradients);
  pattern.check(in.options);
  const Sequences sequences = ResolveSegments(in, dims);
  CheckFastInputs(mixer, in, sequences);
  ClearGradients(gradients, sequences);
  if (!gradients.d_o.present()) return;
  CheckNorm(mixer, out);
  Plan plan(pattern, in, dims, sequences);
  const int64_t floats = BackwardFloats(dims);
  for (auto& unit : plan.units)
    for (SoftmaxGroup& g : unit) g.out = &out, g.gradients = &gradients, g.add = pattern.kinds > 1;
  const int64_t units = static_cast<int64_t>(plan.units.size());
  const int64_t shares = units > 0 ? omp_get_max_threads() / units : 0;
  if (shares > 1 && pattern.kinds == 1)
    return RunShares(plan, shares, floats, static_cast<float*>(scratch));
#pragma omp parallel for schedule(dynamic)
  for (auto& unit : plan.units)
    for (SoftmaxGroup& g : unit)
      AttendBackward(g, static_cast<float*>(scratch) + omp_get_thread_num() * floats);
}

void PatternPrefill(const Mixer& mixer, const Pattern& pattern, const MixerInputs& in,
                    const Array& o, float* state, int64_t length, int64_t capacity) {
  pattern.check(in.options);
  const MixerDims dims = CheckPrefill(mixer, in, o, length, capacity);
  const CacheLayout cache(in.options, dims.HV, dims.K, dims.V, capacity);
  if (length + dims.T > cache.slots) return PrefillRing(pattern, in, o, cache, state, length);
  Store(in, 0, dims.T, cache, state, length);
  Attend(pattern, in, o, cache, state, length + dims.T);
}

// Appends the token of sequence n to key/value head h, then attends with each query head that reads
// it.
void PatternStepHead(const Pattern& pattern, const StepInputs& in, int64_t n, int64_t h) {
  const int64_t K = in.q.shape[2], V = in.v.shape[2], heads = in.q.shape[1] / in.k.shape[1];
  const CacheLayout cache(in.options, in.k.shape[1], K, V, in.capacity);
  const TokenList slot{.row = 0, .begin = cache.Slot(in.length[n]), .length = 1};
  const TokenList token{.row = 0, .begin = 0, .length = 1};
  const Array k = MakeArray(in.k.At<float>(n, h), {1, 1, 1, K});
  const Array v = MakeArray(in.v.At<float>(n, h), {1, 1, 1, V});
  CopyRows({k, token, 0}, {cache.keys(in.state[n]), slot, h});
  CopyRows({v, token, 0}, {cache.values(in.state[n]), slot, h});
  for (int64_t j = h * heads; j < (h + 1) * heads; ++j) {
    CacheReader reader({.q = in.q.At<float>(n, j),
                        .o = in.o.At<float>(n, j),
                        .K = K,
                        .V = V,
                        .scale = SoftmaxScale(in.options, K)},
                       cache.head(in.state[n], h));
    pattern.read(in.options, cache, in.length[n], j % pattern.kinds, reader);
    reader.Finish();
  }
}

}  // namespace linattn
