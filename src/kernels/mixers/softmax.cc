#include "kernels/mixers/softmax.h"

#include <hwy/aligned_allocator.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/blocked_softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/softmax.cc"
// clang-format off
#include <hwy/foreach_target.h>  // first, or each target would be compiled twice
#include <hwy/highway.h>
// clang-format on

#include "kernels/blocked_softmax-inl.h"
#include "kernels/cached_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

void BandForward(const SoftmaxGroup& g, const BandRule& rule, int64_t head, int64_t begin,
                 float* scratch) {
  ForwardTile(g, rule, head, begin, scratch);
}

void BandBackward(const SoftmaxGroup& g, const BandRule& rule, float* scratch) {
  BackwardGroup(g, rule, scratch);
}

void CachedHead(const float* q, const float* k, const float* v, int64_t n, int64_t K, int64_t V,
                float scale, float* o) {
  AttendCache(q, k, v, n, K, V, scale, o);
}

void WidenRows(const Array& array, const TokenList& tokens, int64_t head, float* y) {
  LoadRows({array, tokens, head}, 0, tokens.length, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(BandForward);
HWY_EXPORT(BandBackward);
HWY_EXPORT(CachedHead);
HWY_EXPORT(WidenRows);

constexpr std::string_view kWhere = "softmax";

float Scale(const MixerOptions& options, int64_t K) {
  return static_cast<float>(options.scale != 0 ? options.scale
                                               : 1 / std::sqrt(static_cast<double>(K)));
}

void CheckOptions(const MixerOptions& options) {
  Check(options.window >= 0, kWhere, "window must be >= 0, but is {}", options.window);
  Check(options.window == 0 || options.causal, kWhere,
        "a window needs causal attention, but causal is false");
}

// Groups of all sequences and key/value heads.
std::vector<SoftmaxGroup> MakeGroups(const MixerInputs& in, const MixerDims& dims,
                                     const Sequences& sequences) {
  CheckOptions(in.options);
  Check(in.q.dtype != DType::kF64, kWhere,
        "q must be F32, BF16 or F16 here, but is F64 (the reference functions take it)");
  std::vector<SoftmaxGroup> groups;
  for (int64_t n = 0; n < dims.N; ++n) {
    const TokenList &queries = sequences.queries[n], &keys = sequences.keys[n];
    Check(!in.options.causal || keys.length >= queries.length, kWhere,
          "causal attention must have no fewer keys than queries, but sequence {} has {} keys and "
          "{} queries",
          n, keys.length, queries.length);
    for (int64_t h = 0; h < dims.HV; ++h) {
      groups.push_back({.in = &in,
                        .out = nullptr,
                        .gradients = nullptr,
                        .queries = queries,
                        .keys = keys,
                        .kv_head = h,
                        .head = h * (dims.H / dims.HV),
                        .heads = dims.H / dims.HV,
                        .K = dims.K,
                        .V = dims.V,
                        .scale = Scale(in.options, dims.K)});
    }
  }
  return groups;
}

BandRule RuleOf(const SoftmaxGroup& g) { return {g.in->options, g.queries.length, g.keys.length}; }

int64_t ForwardFloats(const MixerDims& d) { return ForwardState(d.K, d.V, nullptr).floats; }

int64_t BackwardFloats(const MixerDims& d) {
  return BackwardState(d.H / d.HV, d.T, d.K, d.V, nullptr).floats;
}

int64_t ScratchBytes(const MixerDims& dims, int threads) {
  return threads * std::max(ForwardFloats(dims), BackwardFloats(dims)) *
         static_cast<int64_t>(sizeof(float));
}

// A tile of queries owns its outputs, so that results do not depend on the threads.
void RunForward(const std::vector<SoftmaxGroup>& groups, const MixerOutputs& out,
                int64_t scratch_floats, float* scratch) {
  struct Tile {
    const SoftmaxGroup* group;
    int64_t head, begin;
  };
  std::vector<Tile> tiles;
  for (const SoftmaxGroup& g : groups)
    for (int64_t head = g.head; head < g.head + g.heads; ++head)
      for (int64_t begin = 0; begin < g.queries.length; begin += kTileQueries)
        tiles.push_back({&g, head, begin});
  // Causal tiles grow with their place: the largest first, so that none is left over at the end.
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const Tile& a, const Tile& b) { return a.begin > b.begin; });
#pragma omp parallel for schedule(dynamic)
  for (const Tile& tile : tiles) {
    SoftmaxGroup g = *tile.group;
    g.out = &out;
    HWY_DYNAMIC_DISPATCH(BandForward)
    (g, RuleOf(g), tile.head, tile.begin, scratch + omp_get_thread_num() * scratch_floats);
  }
}

void Forward(const MixerInputs& in, const MixerOutputs& out, void* scratch) {
  const MixerDims dims = CheckInputs(k_softmax, in);
  CheckOutputs(k_softmax, dims, out);
  const Sequences sequences = ResolveSegments(in, dims);
  const auto groups = MakeGroups(in, dims, sequences);
  ZeroTokens(out.o, sequences.masked_q);
  if (out.norm.present())
    for (const TokenList& masked : sequences.masked_q)
      for (int64_t i = 0; i < masked.length; ++i)
        for (int64_t h = 0; h < dims.H; ++h)
          *out.norm.At<float>(masked.row, masked[i], h) = -std::numeric_limits<float>::infinity();
  RunForward(groups, out, ForwardFloats(dims), static_cast<float*>(scratch));
}

// One thread owns a group: the sums over its queries and its query heads have one order.
void Backward(const MixerInputs& in, const MixerOutputs& out, const MixerGradients& gradients,
              void* scratch) {
  const MixerDims dims = CheckInputs(k_softmax, in);
  CheckGradients(k_softmax, in, gradients);
  const Sequences sequences = ResolveSegments(in, dims);
  auto groups = MakeGroups(in, dims, sequences);
  const std::vector<TokenList>& all_q =
      gradients.d_o.present() ? sequences.masked_q : sequences.queries;
  for (const auto* lists : {&sequences.masked_q, &all_q}) ZeroTokens(gradients.d_q, *lists);
  for (const Array& d : {gradients.d_k, gradients.d_v}) {
    ZeroTokens(d, sequences.masked_k);
    if (!gradients.d_o.present()) ZeroTokens(d, sequences.keys);
  }
  if (!gradients.d_o.present()) return;
  Check(out.norm.present(), kWhere,
        "backward must be given the norm that forward wrote, but it is absent");
  const int64_t floats = BackwardFloats(dims);
#pragma omp parallel for schedule(dynamic)
  for (SoftmaxGroup& g : groups) {
    g.out = &out;
    g.gradients = &gradients;
    HWY_DYNAMIC_DISPATCH(BandBackward)
    (g, RuleOf(g), static_cast<float*>(scratch) + omp_get_thread_num() * floats);
  }
}

// ---- The cache: keys [HV,capacity,K], then values [HV,capacity,V] ----

struct Cache {
  float* state;
  int64_t capacity, HV, K, V;
  float* k(int64_t head) const { return state + head * capacity * K; }
  float* v(int64_t head) const { return state + HV * capacity * K + head * capacity * V; }
};

int64_t StateFloats(const MixerDims& dims, const MixerOptions&, int64_t capacity) {
  return dims.HV * capacity * (dims.K + dims.V);
}

void CheckRoom(int64_t length, int64_t tokens, int64_t capacity) {
  Check(length >= 0 && length <= capacity - tokens, kWhere,
        "the cache must have room for {} tokens, but its capacity is {}", length + tokens,
        capacity);
}

void CheckStepInputs(const StepInputs& in) {
  CheckStep(k_softmax, in);
  CheckOptions(in.options);
  Check(in.options.causal && !in.options.cross, kWhere,
        "a step must be causal and not cross, but is not");
  for (int64_t n = 0; n < in.q.shape[0]; ++n) CheckRoom(in.length[n], 1, in.capacity);
}

// Appends the token of sequence n to key/value head h, then attends with each query head that reads
// it.
void StepHead(const StepInputs& in, int64_t n, int64_t h) {
  const int64_t K = in.q.shape[2], V = in.v.shape[2], heads = in.q.shape[1] / in.k.shape[1];
  const Cache cache{in.state[n], in.capacity, in.k.shape[1], K, V};
  const int64_t length = in.length[n];
  std::copy_n(in.k.At<float>(n, h), K, cache.k(h) + length * K);
  std::copy_n(in.v.At<float>(n, h), V, cache.v(h) + length * V);
  const int64_t first =
      in.options.window > 0 ? std::max<int64_t>(0, length + 1 - in.options.window) : 0;
  for (int64_t j = h * heads; j < (h + 1) * heads; ++j) {
    HWY_DYNAMIC_DISPATCH(CachedHead)
    (in.q.At<float>(n, j), cache.k(h) + first * K, cache.v(h) + first * V, length + 1 - first, K, V,
     Scale(in.options, K), in.o.At<float>(n, j));
  }
}

void Step(const StepInputs& in) {
  CheckStepInputs(in);
  const int64_t n = in.q.shape[0], HV = in.k.shape[1];
  int64_t tokens = 0;
  for (int64_t i = 0; i < n; ++i) tokens += in.length[i] + 1;
  // Waking a thread costs about as much as reading this many floats.
  constexpr int64_t kFloatsWorthAThread = 1 << 15;
  const bool share =
      tokens * in.q.shape[1] * (in.q.shape[2] + in.v.shape[2]) > 2 * kFloatsWorthAThread;
#pragma omp parallel for collapse(2) schedule(dynamic) if (share)
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < HV; ++h) StepHead(in, i, h);
}

void Prefill(const MixerInputs& in, const Array& o, float* state, int64_t length,
             int64_t capacity) {
  const MixerDims dims = CheckInputs(k_softmax, in);
  const Segments& s = in.segments;
  Check(dims.B == 1 && !s.lengths.present() && !s.mask.present() && !s.boundaries.present(), kWhere,
        "prefill must be given one sequence without masks, but has {} rows or a mask", dims.B);
  Check(in.options.causal && !in.options.cross, kWhere,
        "prefill must be causal and not cross, but is not");
  const MixerOutputs out{.o = o, .norm = {}, .ST = {}, .zT = {}};
  CheckOutputs(k_softmax, dims, out);
  CheckRoom(length, dims.T, capacity);
  const Cache cache{state, capacity, dims.HV, dims.K, dims.V};
  const TokenList tokens{.row = 0, .begin = 0, .length = dims.T};
  for (int64_t h = 0; h < dims.HV; ++h) {
    HWY_DYNAMIC_DISPATCH(WidenRows)(in.k, tokens, h, cache.k(h) + length * dims.K);
    HWY_DYNAMIC_DISPATCH(WidenRows)(in.v, tokens, h, cache.v(h) + length * dims.V);
  }
  MixerInputs cached = in;
  const int64_t S = length + dims.T;
  cached.k = MakeArray(cache.k(0), {1, S, dims.HV, dims.K});
  cached.k.stride = {0, dims.K, capacity * dims.K, 1};
  cached.v = MakeArray(cache.v(0), {1, S, dims.HV, dims.V});
  cached.v.stride = {0, dims.V, capacity * dims.V, 1};
  Sequences sequences;
  sequences.queries = {tokens};
  sequences.keys = {{.row = 0, .begin = 0, .length = S}};
  const auto groups = MakeGroups(cached, dims, sequences);
  const auto scratch = hwy::AllocateAligned<float>(omp_get_max_threads() * ForwardFloats(dims));
  RunForward(groups, out, ForwardFloats(dims), scratch.get());
}

// Pairs of a query and a key that it sees, in one head of one row.
double Pairs(const MixerDims& d, bool causal) {
  const double T = d.T, S = d.S;
  return causal ? T * (S - T) + T * (T + 1) / 2 : T * S;
}

double Flops(const MixerDims& d, bool causal) {
  return 2.0 * static_cast<double>(d.K + d.V) * static_cast<double>(d.B * d.H) * Pairs(d, causal);
}

double Bytes(const MixerDims& d, bool) {
  const double queries = d.B * d.T * d.H, keys = d.B * d.S * d.HV;
  return 4.0 * (queries * (d.K + d.V + 1) + keys * (d.K + d.V));
}

}  // namespace

const Mixer k_softmax = {
    .name = "softmax",
    .summary = "scaled dot-product attention over a cache of keys and values",
    .family = Family::kCache,
    .decay = Decay::kNone,
    .write = Write::kAdd,
    .normalised = true,
    .feature_map = "",
    .fixed_decay = false,
    .shared_qk = false,
    .tolerance =
        {.forward = 5e-6,
         .backward = 2e-5,
         .reason = "blocked float32 sums; exp turns the rounding of a score into a relative error"},
    .forward_ref = softmax_ref::Forward,
    .backward_ref = softmax_ref::Backward,
    .scratch_bytes = ScratchBytes,
    .forward = Forward,
    .backward = Backward,
    .state_floats = StateFloats,
    .step = Step,
    .prefill = Prefill,
    .flops = Flops,
    .bytes = Bytes,
};

}  // namespace linattn
#endif  // HWY_ONCE
