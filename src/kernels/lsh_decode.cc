#include "kernels/lsh_decode.h"

#include <hwy/aligned_allocator.h>
#include <omp.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "kernels/lsh_head.h"
#include "kernels/mixers/lsh.h"

namespace linattn {
namespace {

// The state block: the directions of keys and the values of a cache, rotations [rounds,K,buckets/2]
// (the first token fills them in), then of each key head its chains and a row [K] that a step works
// in.
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
    int64_t s = chains.Before(r, t);
    for (int64_t i = 0; i < others[r] && s >= 0; ++i, s = chains.Before(r, s)) reader.Add(s);
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
  KeyDirections().Forward(in.k.At<float>(n, h), 1, K, state.row(h));
  CopyRows({MakeArray(state.row(h), {1, 1, 1, K}), only, 0}, {cache.keys(state.block), place, h});
  CopyRows({MakeArray(in.v.At<float>(n, h), {1, 1, 1, cache.V}), only, 0},
           {cache.values(state.block), place, h});
  std::fill_n(state.row(h), K, 0.0f);  // blocks of equal sequences are equal
  LshChains chains = state.chains(h);
  std::array<int64_t, kMaxRounds> others;
  for (int64_t r = 0; r < lsh.rounds; ++r) {
    int32_t bucket;
    HashRows(in.k.At<float>(n, h), 1, K, state.block + state.rotations + r * K * (lsh.buckets / 2),
             lsh.buckets, &bucket);
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

// Key head h of a prompt; lists and scratch are the thread's.
void PrefillHead(const MixerInputs& in, const Array& o, const State& state, int64_t length,
                 int64_t h, LshLists& lists, float* scratch) {
  const int64_t T = in.q.shape[1], K = state.K, heads = in.q.shape[2] / state.cache.HV;
  const LshHead x(T, heads, K, state.cache.V, false, scratch);
  const TokenList all{.row = 0, .begin = 0, .length = T},
      places{.row = 0, .begin = length, .length = T};
  const LshUnit unit{&all, h};
  MixerInputs own = x.Load(in, unit);
  own.k = state.cache.keys(state.block), own.v = state.cache.values(state.block);
  CopyRows({x.unit, all, 0}, {own.k, places, h});
  CopyRows({x.v, all, 0}, {own.v, places, h});
  LshChains chains = state.chains(h);
  lists.Hash(x.k.At<float>(), T, K, state.block + state.rotations, &chains, length);
  x.Attend(own, h, lists);
  lists.AppendTo(chains);
  StoreHeads(x.o, unit, o);
}

}  // namespace

int64_t LshStateFloats(const MixerDims& d, const MixerOptions& options, int64_t capacity) {
  return State(options, d.HV, d.K, d.V, capacity).floats;
}

void LshStep(const StepInputs& in) {
  CheckLshOptions(in.options);
  CheckTokens(in.capacity);
  CacheStep(k_lsh, in,
            {.begin = [](const StepInputs& step,
                         int64_t n) { Begin(step.options, StateOf(step, n), step.length[n]); },
             .head = StepHead});
}

void LshPrefill(const MixerInputs& in, const Array& o, float* block, int64_t length,
                int64_t capacity) {
  CheckLshOptions(in.options);
  const MixerDims dims = CheckPrefill(k_lsh, in, o, length, capacity);
  CheckTokens(capacity);
  const State state(in.options, dims.HV, dims.K, dims.V, capacity, block);
  Begin(in.options, state, length);
  for (int64_t h = 0; h < dims.HV; ++h) state.chains(h).CheckHolds(length);
  const int threads = static_cast<int>(std::min<int64_t>(dims.HV, omp_get_max_threads()));
  const int64_t floats = LshHead::Floats(dims, false);
  const auto scratch = hwy::AllocateAligned<float>(threads * floats);
  std::vector<LshLists> lists(threads, LshLists(in.options, dims.T, length + dims.T));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t h = 0; h < dims.HV; ++h) {
    const int thread = omp_get_thread_num();
    PrefillHead(in, o, state, length, h, lists[thread], scratch.get() + thread * floats);
  }
}

}  // namespace linattn
