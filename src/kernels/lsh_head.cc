#include "kernels/lsh_head.h"

#include <algorithm>
#include <limits>

#include "kernels/scratch.h"

namespace linattn {
namespace {

// All rows of x, in order.
TokenList All(const Array& x) { return {.row = 0, .begin = 0, .length = x.shape[1]}; }

// [B,T,H] as [B,T,H,1].
Array WithChannels(Array x) {
  if (x.rank == 3) x.rank = 4, x.shape[3] = x.stride[3] = 1;
  return x;
}

// body(group) for each round and bucket that shows a token something.
template <class Body>
void ForEachBucket(const LshOptions& lsh, LshLists& lists, SoftmaxGroup g, const Body& body) {
  for (int64_t r = 0; r < lsh.rounds; ++r) {
    lists.Sort(r);
    for (int64_t b = 0; b < lsh.buckets; ++b) {
      const LshLists::Bucket x = lists.At(b);
      if (x.fresh == 0 || (x.old + x.fresh == 1 && x.visible.hidden[0] == 0)) continue;
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

}  // namespace

std::vector<LshUnit> LshUnits(const Sequences& sequences, int64_t HV) {
  std::vector<LshUnit> units;
  for (const TokenList& tokens : sequences.queries)
    for (int64_t h = 0; h < HV; ++h) units.push_back({&tokens, h});
  return units;
}

const FeatureMap& KeyDirections() {
  static const FeatureMap& map = FeatureMapByName("l2");
  return map;
}

LshHead::LshHead(int64_t T, int64_t heads, int64_t K, int64_t V, bool backward, float* scratch) {
  Pieces pieces(scratch);
  const auto rows = [&](int64_t n, int64_t channels) {
    return MakeArray(pieces.Take(T * n * channels), {1, T, n, channels});
  };
  q = rows(heads, K), k = rows(1, K), unit = rows(1, K), v = rows(1, V), o = rows(heads, V);
  norm = MakeArray(pieces.Take(T * heads), {1, T, heads});
  if (backward) d_o = rows(heads, V), d_q = rows(heads, K), d_unit = rows(1, K), d_v = rows(1, V);
  work = pieces.Take(backward ? BackwardState(heads, T, K, V, nullptr).floats
                              : ForwardState(K, V, nullptr).floats);
  floats = pieces.used();
}

int64_t LshHead::Floats(const MixerDims& d, bool backward) {
  return LshHead(d.T, d.H / d.HV, d.K, d.V, backward, nullptr).floats;
}

MixerInputs LshHead::Load(MixerInputs in, const LshUnit& own) const {
  LoadHeads(in.q, own, q), LoadHeads(in.k, own, k), LoadHeads(in.v, own, v);
  KeyDirections().Forward(k.At<float>(), k.shape[1], k.shape[3], unit.At<float>());
  in.q = q, in.k = unit, in.v = v;
  return in;
}

void LshHead::Attend(const MixerInputs& in, int64_t kv_head, LshLists& lists) const {
  std::fill_n(o.At<float>(), o.size(), 0.0f);
  std::fill_n(norm.At<float>(), norm.size(), -std::numeric_limits<float>::infinity());
  const MixerOutputs out{.o = o, .norm = norm, .ST = {}, .zT = {}};
  SoftmaxGroup group = GroupOf(in, kv_head);
  group.out = &out;
  ForEachBucket(in.options.lsh, lists, group, [&](const SoftmaxGroup& g) {
    for (int64_t j = 0; j < g.heads; ++j)
      for (int64_t begin = 0; begin < g.queries.length; begin += kTileQueries)
        AttendTile(g, j, begin, work);
  });
}

// With o and norm over all rounds, each round's part of the gradients is that of a softmax (eq. 25
// to 27).
void LshHead::AttendBack(const MixerInputs& in, LshLists& lists) const {
  const MixerOutputs out{.o = o, .norm = norm, .ST = {}, .zT = {}};
  MixerGradients gradients;
  gradients.d_o = d_o, gradients.d_q = d_q, gradients.d_k = d_unit, gradients.d_v = d_v;
  for (const Array& d : {d_q, d_unit, d_v}) std::fill_n(d.At<float>(), d.size(), 0.0f);
  SoftmaxGroup group = GroupOf(in, 0);
  group.out = &out, group.gradients = &gradients;
  ForEachBucket(in.options.lsh, lists, group,
                [&](const SoftmaxGroup& g) { AttendBackward(g, work); });
}

void LoadHeads(const Array& from, const LshUnit& unit, const Array& x) {
  for (int64_t j = 0; j < x.shape[2]; ++j)
    CopyRows({WithChannels(from), *unit.tokens, unit.h * x.shape[2] + j},
             {WithChannels(x), All(x), j});
}

void StoreHeads(const Array& x, const LshUnit& unit, const Array& to) {
  if (!to.present()) return;
  for (int64_t j = 0; j < x.shape[2]; ++j)
    CopyRows({WithChannels(x), All(x), j},
             {WithChannels(to), *unit.tokens, unit.h * x.shape[2] + j});
}

}  // namespace linattn
