#include <vector>

#include "kernels/feature_map.h"
#include "kernels/lsh_hash.h"
#include "kernels/mixers/lsh.h"

namespace linattn::lsh_ref {
namespace {

// The keys of a call: their directions, and the buckets that they fall into.
class Keys {
 public:
  Keys(const MixerInputs& in, const MixerDims& dims)
      : in_(in),
        dims_(dims),
        rounds_(in.options.lsh.rounds),
        unit_values_(dims.B * dims.S * dims.HV * dims.K),
        buckets_(dims.B * dims.S * dims.HV * rounds_) {
    unit = MakeArray(unit_values_.data(), {dims.B, dims.S, dims.HV, dims.K});
    std::vector<float> rotations(RotationFloats(in.options, dims.K));
    FillRotations(in.options, dims.K, rotations.data());
    for (int64_t b = 0; b < dims.B; ++b)
      for (int64_t s = 0; s < dims.S; ++s)
        for (int64_t h = 0; h < dims.HV; ++h) {
          const double* k = in.k.At<double>(b, s, h);
          FeatureMapByName("l2").Forward(k, 1, dims.K, unit.At<double>(b, s, h));
          for (int64_t r = 0; r < rounds_; ++r)
            buckets_[At(b, s, h, r)] =
                Argmax(k, rotations.data() + r * dims.K * (in.options.lsh.buckets / 2));
        }
  }

  void Seen(const CacheQuery& x, std::vector<int>& times) const {
    const int64_t chunk = in_.options.lsh.chunk, T = x.keys.length, kv = x.h / (dims_.H / dims_.HV);
    bool nothing = true;
    for (int64_t r = 0; r < rounds_; ++r) {
      const auto bucket = [&](int64_t s) { return buckets_[At(x.keys.row, x.keys[s], kv, r)]; };
      int64_t own = 0;  // of the bucket's tokens, which one the query is
      for (int64_t s = 0; s < x.i; ++s) own += bucket(s) == bucket(x.i);
      int64_t rank = 0;
      for (int64_t s = 0; s < (in_.options.causal ? x.i : T); ++s) {
        if (bucket(s) != bucket(x.i)) continue;
        const int64_t chunks = own / chunk - rank / chunk;
        if (s != x.i && (chunks == 0 || chunks == 1)) ++times[s], nothing = false;
        ++rank;
      }
    }
    if (nothing) times[x.i] = static_cast<int>(rounds_);
  }

  Array unit;  // [B,S,HV,K] k / |k|

 private:
  int64_t At(int64_t b, int64_t s, int64_t h, int64_t r) const {
    return ((b * dims_.S + s) * dims_.HV + h) * rounds_ + r;
  }

  int64_t Argmax(const double* k, const float* rotation) const {
    const int64_t half = in_.options.lsh.buckets / 2;
    std::vector<double> y(2 * half, 0);
    for (int64_t j = 0; j < half; ++j) {
      for (int64_t c = 0; c < dims_.K; ++c)
        y[j] += double{static_cast<float>(k[c])} * double{rotation[c * half + j]};
      y[half + j] = -y[j];
    }
    int64_t best = 0;
    for (int64_t i = 1; i < 2 * half; ++i)
      if (y[i] > y[best]) best = i;
    return best;
  }

  const MixerInputs& in_;
  const MixerDims& dims_;
  const int64_t rounds_;
  std::vector<double> unit_values_;
  std::vector<int64_t> buckets_;
};

}  // namespace

void Forward(const MixerInputs& in, const MixerOutputs& out) {
  const MixerDims dims = CheckDoubles(k_lsh, in);
  CheckLshOptions(in.options);
  const Keys keys(in, dims);
  MixerInputs turned = in;
  turned.k = keys.unit;
  CacheForwardRef(turned, dims, out,
                  [&](const CacheQuery& x, std::vector<int>& times) { keys.Seen(x, times); });
}

void Backward(const MixerInputs& in, const MixerOutputs&, const MixerGradients& gradients) {
  const MixerDims dims = CheckDoubles(k_lsh, in);
  CheckLshOptions(in.options);
  const Keys keys(in, dims);
  MixerInputs turned = in;
  turned.k = keys.unit;
  std::vector<double> d_unit(dims.B * dims.S * dims.HV * dims.K);
  MixerGradients grad = gradients;
  grad.d_k = MakeArray(d_unit.data(), {dims.B, dims.S, dims.HV, dims.K});
  CacheBackwardRef(turned, dims, grad,
                   [&](const CacheQuery& x, std::vector<int>& times) { keys.Seen(x, times); });
  if (!gradients.d_k.present()) return;
  const Sequences sequences = ResolveSegments(in, dims);
  ZeroTokens(gradients.d_k, sequences.masked_k);
  for (const TokenList& list : sequences.keys)
    for (int64_t s = 0; s < list.length; ++s)
      for (int64_t h = 0; h < dims.HV; ++h)
        FeatureMapByName("l2").Backward(in.k.At<double>(list.row, list[s], h),
                                        keys.unit.At<double>(list.row, list[s], h),
                                        grad.d_k.At<double>(list.row, list[s], h), 1, dims.K,
                                        gradients.d_k.At<double>(list.row, list[s], h));
}

}  // namespace linattn::lsh_ref
