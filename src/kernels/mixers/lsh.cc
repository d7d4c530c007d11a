#include "kernels/mixers/lsh.h"

#include <hwy/aligned_allocator.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "kernels/cache_mixer.h"
#include "kernels/feature_map.h"
#include "kernels/lsh_lists.h"
#include "kernels/scratch.h"

namespace linattn {
namespace {

// x / |x|.
const FeatureMap& Directions() {
  static const FeatureMap& map = FeatureMapByName("l2");
  return map;
}

// What one key head of one sequence and the `heads` query heads that read it work on: T tokens in
// order, dense and in float32, because each of them is read in every round.
struct Head {
  Head(int64_t T, int64_t heads, int64_t K, int64_t V, bool backward, float* scratch) {
    Pieces pieces(scratch);
    const auto rows = [&](int64_t n, int64_t channels) {
      return MakeArray(pieces.Take(T * n * channels), {1, T, n, channels});
    };
    q = rows(heads, K), k = rows(1, K), unit = rows(1, K), v = rows(1, V), o = rows(heads, V);
    norm = MakeArray(pieces.Take(T * heads), {1, T, heads});
    const int64_t tile = ForwardState(K, V, nullptr).floats;
    const int64_t group = BackwardState(heads, T, K, V, nullptr).floats;
    if (backward)
      d_o = rows(heads, V), d_q = rows(heads, K), d_unit = rows(1, K), d_v = rows(1, V);
    work = pieces.Take(backward ? group : tile);
    floats = pieces.used();
  }
  Array q, k, unit, v, o, norm, d_o, d_q, d_unit, d_v;
  float* work;
  int64_t floats;
};

int64_t HeadFloats(const MixerDims& d, bool backward) {
  return Head(d.T, d.H / d.HV, d.K, d.V, backward, nullptr).floats;
}

int64_t ScratchBytes(const MixerDims& dims, int threads) {
  return threads * HeadFloats(dims, true) * static_cast<int64_t>(sizeof(float));
}

std::vector<float> Rotations(const MixerOptions& options, int64_t K) {
  std::vector<float> rotations(RotationFloats(options, K));
  FillRotations(options, K, rotations.data());
  return rotations;
}

// body(group) for each round and bucket that shows a token something.
template <class Body>
void ForEachBucket(const LshOptions& lsh, LshLists& lists, SoftmaxGroup g, const Body& body) {
  for (int64_t r = 0; r < lsh.rounds; ++r) {
    lists.Sort(r);
    for (int64_t b = 0; b < lsh.buckets; ++b) {
      const LshLists::Bucket x = lists.At(b);
      const bool alone = x.old + x.fresh == 1 && x.visible.hidden[0] == 0;
      if (x.fresh == 0 || alone) continue;
      g.queries = {.row = 0, .begin = 0, .length = x.fresh, .index = x.queries};
      g.keys = {.row = 0, .begin = 0, .length = x.old + x.fresh, .index = x.keys};
      g.visible = x.visible;
      body(g);
    }
  }
}

SoftmaxGroup GroupOf(const MixerInputs& in, int64_t kv_head) {
  return {.in = &in,
          .queries = {},
          .keys = {},
          .kv_head = kv_head,
          .head = 0,
          .heads = in.q.shape[2],
          .K = in.q.shape[3],
          .V = in.v.shape[3],
          .scale = SoftmaxScale(in.options, in.q.shape[3]),
          .add = true};
}

// All rounds forward into x.o and x.norm, for queries x.q and the keys and values of `in`.
void Attend(const MixerInputs& in, int64_t kv_head, LshLists& lists, const Head& x) {
  std::fill_n(x.o.At<float>(), x.o.size(), 0.0f);
  std::fill_n(x.norm.At<float>(), x.norm.size(), -std::numeric_limits<float>::infinity());
  const MixerOutputs out{.o = x.o, .norm = x.norm, .ST = {}, .zT = {}};
  SoftmaxGroup group = GroupOf(in, kv_head);
  group.out = &out;
  ForEachBucket(in.options.lsh, lists, group, [&](const SoftmaxGroup& g) {
    for (int64_t j = 0; j < g.heads; ++j)
      for (int64_t begin = 0; begin < g.queries.length; begin += kTileQueries)
        AttendTile(g, j, begin, x.work);
  });
}

// One key head of one sequence: its tokens, and what they work on.
struct Unit {
  const TokenList* tokens;
  int64_t h;
};

std::vector<Unit> Units(const Sequences& sequences, int64_t HV) {
  std::vector<Unit> units;
  for (const TokenList& tokens : sequences.queries)
    for (int64_t h = 0; h < HV; ++h) units.push_back({&tokens, h});
  return units;
}

// All rows of x, in order.
TokenList All(const Array& x) { return {.row = 0, .begin = 0, .length = x.shape[1]}; }

// Query heads [h * heads, (h + 1) * heads) of `from` into x.
void LoadHeads(const Array& from, const Unit& unit, const Array& x) {
  for (int64_t j = 0; j < x.shape[2]; ++j)
    CopyRows({from, *unit.tokens, unit.h * x.shape[2] + j}, {x, All(x), j});
}

void StoreHeads(const Array& x, const Unit& unit, const Array& to) {
  for (int64_t j = 0; j < x.shape[2]; ++j)
    CopyRows({x, All(x), j}, {to, *unit.tokens, unit.h * x.shape[2] + j});
}

// Inputs of one unit, and the directions of its keys; the rest of `in` as it is.
MixerInputs Load(MixerInputs in, const Unit& unit, const Head& x) {
  LoadHeads(in.q, unit, x.q), LoadHeads(in.k, unit, x.k), LoadHeads(in.v, unit, x.v);
  Directions().Forward(x.k.At<float>(), x.k.shape[1], x.k.shape[3], x.unit.At<float>());
  in.q = x.q, in.k = x.unit, in.v = x.v;
  return in;
}

Array WithAxis(Array norm) {  // [B,T,H] as [B,T,H,1]
  norm.rank = 4, norm.shape[3] = norm.stride[3] = 1;
  return norm;
}

void Forward(const MixerInputs& in, const MixerOutputs& out, void* scratch) {
  const MixerDims dims = CheckInputs(k_lsh, in);
  CheckOutputs(k_lsh, dims, out);
  CheckLshOptions(in.options);
  const Sequences sequences = ResolveSegments(in, dims);
  CheckFastInputs(k_lsh, in, sequences);
  ClearOutputs(dims, out, sequences.masked_q);
  const std::vector<float> rotations = Rotations(in.options, dims.K);
  const std::vector<Unit> units = Units(sequences, dims.HV);
  std::vector<LshLists> lists(omp_get_max_threads(), LshLists(in.options, dims.T, dims.T));
  const int64_t floats = HeadFloats(dims, false), heads = dims.H / dims.HV;
#pragma omp parallel for schedule(dynamic)
  for (const Unit& unit : units) {
    const int64_t T = unit.tokens->length, thread = omp_get_thread_num();
    const Head x(T, heads, dims.K, dims.V, false, static_cast<float*>(scratch) + thread * floats);
    const MixerInputs own = Load(in, unit, x);
    lists[thread].Hash(x.k.At<float>(), T, dims.K, rotations.data(), nullptr, 0);
    Attend(own, 0, lists[thread], x);
    StoreHeads(x.o, unit, out.o);
    if (out.norm.present()) StoreHeads(WithAxis(x.norm), unit, WithAxis(out.norm));
  }
}

// With o and norm over all rounds, each round's part of the gradients is that of a softmax (eq. 29).
void BackwardUnit(const MixerInputs& in, LshLists& lists, const Head& x) {
  const MixerOutputs out{.o = x.o, .norm = x.norm, .ST = {}, .zT = {}};
  MixerGradients gradients;
  gradients.d_o = x.d_o, gradients.d_q = x.d_q, gradients.d_k = x.d_unit, gradients.d_v = x.d_v;
  for (const Array& d : {x.d_q, x.d_unit, x.d_v}) std::fill_n(d.At<float>(), d.size(), 0.0f);
  SoftmaxGroup group = GroupOf(in, 0);
  group.out = &out, group.gradients = &gradients;
  ForEachBucket(in.options.lsh, lists, group,
                [&](const SoftmaxGroup& g) { AttendBackward(g, x.work); });
}

void Backward(const MixerInputs& in, const MixerOutputs& out, const MixerGradients& gradients,
              void* scratch) {
  const MixerDims dims = CheckInputs(k_lsh, in);
  CheckGradients(k_lsh, in, gradients);
  CheckLshOptions(in.options);
  const Sequences sequences = ResolveSegments(in, dims);
  CheckFastInputs(k_lsh, in, sequences);
  ClearGradients(gradients, sequences);
  if (!gradients.d_o.present()) return;
  Check(out.norm.present(), "lsh",
        "backward must be given the norm that forward wrote, but it is absent");
  const std::vector<float> rotations = Rotations(in.options, dims.K);
  const std::vector<Unit> units = Units(sequences, dims.HV);
  std::vector<LshLists> lists(omp_get_max_threads(), LshLists(in.options, dims.T, dims.T));
  const int64_t floats = HeadFloats(dims, true), heads = dims.H / dims.HV;
#pragma omp parallel for schedule(dynamic)
  for (const Unit& unit : units) {
    const int64_t T = unit.tokens->length, thread = omp_get_thread_num();
    const Head x(T, heads, dims.K, dims.V, true, static_cast<float*>(scratch) + thread * floats);
    const MixerInputs own = Load(in, unit, x);
    LoadHeads(out.o, unit, x.o), LoadHeads(WithAxis(out.norm), unit, WithAxis(x.norm));
    LoadHeads(gradients.d_o, unit, x.d_o);
    lists[thread].Hash(x.k.At<float>(), T, dims.K, rotations.data(), nullptr, 0);
    BackwardUnit(own, lists[thread], x);
    // x.o is read no more, but may be too narrow: the gradient of k goes over its direction.
    Directions().Backward(x.k.At<float>(), x.unit.At<float>(), x.d_unit.At<float>(), T, dims.K,
                          x.d_unit.At<float>());
    StoreHeads(x.d_q, unit, gradients.d_q), StoreHeads(x.d_unit, unit, gradients.d_k);
    StoreHeads(x.d_v, unit, gradients.d_v);
  }
}

// ---- Decoding ----

// The state block: the directions of keys and the values of a cache, rotations [rounds,K,buckets/2]
// (the first token fills them in), then of each key head its chains and a row [K] that a step works in.
struct State {
  State(const MixerOptions& options, int64_t HV, int64_t K, int64_t V, int64_t capacity,
        float* block = nullptr)
      : cache(options, HV, K, V, capacity),
        lsh(options.lsh),
        K(K),
        capacity(capacity),
        block(block),
        rotations(cache.floats()),
        heads(rotations + RotationFloats(options, K)),
        stride(LshChains::Floats(lsh, capacity) + K),
        floats(heads + HV * stride) {}

  LshChains chains(int64_t h) const { return {lsh, capacity, block + heads + h * stride}; }
  float* row(int64_t h) const { return block + heads + (h + 1) * stride - K; }

  CacheLayout cache;
  LshOptions lsh;
  int64_t K, capacity;
  float* block;
  int64_t rotations, heads, stride, floats;  // where the parts begin; floats of one head, of all
};

int64_t StateFloats(const MixerDims& d, const MixerOptions& options, int64_t capacity) {
  return State(options, d.HV, d.K, d.V, capacity).floats;
}

// A new sequence may find anything in its block.
void Begin(const MixerOptions& options, const State& state, int64_t length) {
  if (length > 0) return;
  FillRotations(options, state.K, state.block + state.rotations);
  for (int64_t h = 0; h < state.cache.HV; ++h) state.chains(h).Clear();
}

void CheckTokens(int64_t capacity) {
  Check(capacity <= LshChains::kMaxTokens, "lsh", "capacity must be at most {}, but is {}",
        LshChains::kMaxTokens, capacity);
}

State StateOf(const StepInputs& in, int64_t n) {
  return State(in.options, in.k.shape[1], in.q.shape[2], in.v.shape[2], in.capacity, in.state[n]);
}

// Gives the reader what token t sees: `others` tokens before it in its bucket of each round.
void Read(const LshChains& chains, const std::array<int64_t, kMaxRounds>& others, int64_t rounds,
          int64_t t, CacheReader& reader) {
  bool nothing = true;
  for (int64_t r = 0; r < rounds; ++r) {
    for (int64_t i = 0, s = t; i < others[r]; ++i) reader.Add(s = chains.Before(r, s));
    nothing = nothing && others[r] == 0;
  }
  if (nothing) reader.Add(t);
}

void StepHead(const StepInputs& in, int64_t n, int64_t h) {
  const State state = StateOf(in, n);
  const CacheLayout& cache = state.cache;
  const LshOptions& lsh = in.options.lsh;
  const int64_t t = in.length[n], K = cache.K, heads = in.q.shape[1] / cache.HV;
  const TokenList place{.row = 0, .begin = t, .length = 1}, only{.row = 0, .begin = 0, .length = 1};
  Directions().Forward(in.k.At<float>(n, h), 1, K, state.row(h));
  CopyRows({MakeArray(state.row(h), {1, 1, 1, K}), only, 0}, {cache.keys(state.block), place, h});
  CopyRows({MakeArray(in.v.At<float>(n, h), {1, 1, 1, cache.V}), only, 0},
           {cache.values(state.block), place, h});
  std::fill_n(state.row(h), K, 0.0f);  // blocks of equal sequences are equal
  LshChains chains = state.chains(h);
  std::array<int64_t, kMaxRounds> others;
  for (int64_t r = 0; r < lsh.rounds; ++r) {
    int32_t bucket;
    HashRows(in.k.At<float>(n, h), 1, K,
             state.block + state.rotations + r * K * (lsh.buckets / 2), lsh.buckets, &bucket);
    const int64_t own = chains.Count(r, bucket);
    others[r] = own - FirstSeen(own, lsh.chunk);
    chains.Append(r, bucket, t);
  }
  for (int64_t j = h * heads; j < (h + 1) * heads; ++j) {
    CacheReader reader({.q = in.q.At<float>(n, j),
                        .o = in.o.At<float>(n, j),
                        .K = K,
                        .V = cache.V,
                        .scale = SoftmaxScale(in.options, K)},
                       cache.head(state.block, h));
    Read(chains, others, lsh.rounds, t, reader);
    reader.Finish();
  }
}

void Step(const StepInputs& in) {
  CheckLshOptions(in.options);
  CheckTokens(in.capacity);
  CacheStep(k_lsh, in,
            {.begin = [](const StepInputs& step,
                         int64_t n) { Begin(step.options, StateOf(step, n), step.length[n]); },
             .head = StepHead});
}

// Key head h of a prompt; lists and scratch are the thread's.
void PrefillHead(const MixerInputs& in, const Array& o, const State& state, int64_t length,
                 int64_t h, LshLists& lists, float* scratch) {
  const int64_t T = in.q.shape[1], K = state.K, heads = in.q.shape[2] / state.cache.HV;
  const Head x(T, heads, K, state.cache.V, false, scratch);
  const TokenList all = All(x.q), places{.row = 0, .begin = length, .length = T};
  const Unit unit{&all, h};
  MixerInputs own = Load(in, unit, x);
  own.k = state.cache.keys(state.block), own.v = state.cache.values(state.block);
  CopyRows({x.unit, all, 0}, {own.k, places, h});
  CopyRows({x.v, all, 0}, {own.v, places, h});
  LshChains chains = state.chains(h);
  lists.Hash(x.k.At<float>(), T, K, state.block + state.rotations, &chains, length);
  Attend(own, h, lists, x);
  lists.AppendTo(chains);
  StoreHeads(x.o, unit, o);
}

void Prefill(const MixerInputs& in, const Array& o, float* block, int64_t length,
             int64_t capacity) {
  CheckLshOptions(in.options);
  const MixerDims dims = CheckPrefill(k_lsh, in, o, length, capacity);
  CheckTokens(capacity);
  const State state(in.options, dims.HV, dims.K, dims.V, capacity, block);
  Begin(in.options, state, length);
  const int threads = static_cast<int>(std::min<int64_t>(dims.HV, omp_get_max_threads()));
  const int64_t floats = HeadFloats(dims, false);
  const auto scratch = hwy::AllocateAligned<float>(threads * floats);
  std::vector<LshLists> lists(threads, LshLists(in.options, dims.T, length + dims.T));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t h = 0; h < dims.HV; ++h) {
    const int thread = omp_get_thread_num();
    PrefillHead(in, o, state, length, h, lists[thread], scratch.get() + thread * floats);
  }
}

// Of forward with the options that hold unless told: a chunk and a half a round, and the hash.
double Flops(const MixerDims& d, bool causal) {
  const LshOptions lsh;
  const double keys = std::min<double>(d.T, lsh.chunk * (causal ? 1.5 : 2));
  const double hash = static_cast<double>(d.HV) * d.K * lsh.buckets;
  const double rounds = static_cast<double>(lsh.rounds * d.B * d.T);
  return rounds * (2.0 * static_cast<double>((d.K + d.V) * d.H) * keys + hash);
}

constexpr Mixer Descriptor() {
  Mixer m = CacheMixer(
      {.name = "lsh",
       .summary = "softmax over the keys that a hash finds near the query; queries are the keys",
       .shared_qk = true,
       .self_only = true,
       .tolerance = {.forward = 5e-6,
                     .backward = 2e-5,
                     .reason = "blocked float32 sums; exp turns the rounding of a score into a "
                               "relative error"},
       .forward_ref = lsh_ref::Forward,
       .backward_ref = lsh_ref::Backward,
       .flops = Flops});
  m.scratch_bytes = ScratchBytes;
  m.forward = Forward;
  m.backward = Backward;
  m.state_floats = StateFloats;
  m.step = Step;
  m.prefill = Prefill;
  return m;
}

}  // namespace

constinit const Mixer k_lsh = Descriptor();

}  // namespace linattn
