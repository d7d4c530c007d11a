#include "kernels/mixer.h"

#include <fmt/ranges.h>

#include <string>

#include "base/error.h"
#include "kernels/log_decay.h"
#include "kernels/reference_fallback.h"

namespace linattn {

#define MIXER(name) extern const Mixer k_##name;
#include "kernels/mixers.inc"
#undef MIXER

namespace {

// The registry; descriptors are constants, so that it can be read while the program starts.
std::span<const Mixer* const> Registry() {
  static const Mixer* const mixers[] = {
#define MIXER(name) &Filled<k_##name>(),
#include "kernels/mixers.inc"
#undef MIXER
  };
  return mixers;
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

std::string Join(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

// What every array of one call is held against: the fast functions take float32 and its short
// relatives, the references float64 throughout.
struct Checker {
  std::string_view mixer;
  bool reference;

  // `letters` spells the axes ("B,S,HV,V"), `sizes` what they must be.
  void Shape(std::string_view name, const Array& a, std::string_view letters,
             std::initializer_list<int64_t> sizes) const {
    const bool same = a.rank == static_cast<int>(sizes.size()) &&
                      std::equal(sizes.begin(), sizes.end(), a.shape.begin());
    if (!same)  // spelling shapes out allocates, which a step must not
      Fail(mixer, "{} must be [{}] = {}, but has shape {}", name, letters, Join({sizes}),
           a.ShapeString());
    const int last = a.rank - 1;
    Check(a.stride[last] == 1 || a.shape[last] <= 1, mixer,
          "{} must be contiguous along its last axis, but has stride {} there (copy it first)",
          name, a.stride[last]);
  }

  void Values(std::string_view name, const Array& a, std::string_view letters,
              std::initializer_list<int64_t> sizes) const {
    Shape(name, a, letters, sizes);
    Check(reference ? a.dtype == DType::kF64 : IsFloat(a.dtype), mixer, "{} must be {}, but is {}",
          name, reference ? "F64 like q" : "F32, BF16 or F16", NameOf(a.dtype));
  }

  // States and normalisers, which are never shorter than float32.
  void State(std::string_view name, const Array& a, std::string_view letters,
             std::initializer_list<int64_t> sizes) const {
    Shape(name, a, letters, sizes);
    Check(a.dtype == (reference ? DType::kF64 : DType::kF32), mixer, "{} must be {}, but is {}",
          name, reference ? "F64 like q" : "F32", NameOf(a.dtype));
  }
};

void CheckRank4(std::string_view mixer, std::string_view name, const Array& a,
                std::string_view letters) {
  Check(a.rank == 4, mixer, "{} must be [{}], but has shape {}", name, letters, a.ShapeString());
}

int64_t Features(const Mixer& mixer, const MixerOptions& options, int64_t K) {
  if (mixer.family != Family::kState) return K;
  const FeatureMap& map =
      options.feature_map ? *options.feature_map : FeatureMapByName(mixer.feature_map);
  const int64_t F = map.Features(K);
  Check(!options.key_map || options.key_map->Features(K) == F, mixer.name,
        "the maps of q and k must give as many features, but {} gives {} and {} gives {}",
        map.name(), F, options.key_map ? options.key_map->name() : "",
        options.key_map ? options.key_map->Features(K) : 0);
  return F;
}

int64_t Count(const Mixer& mixer, const MixerInputs& in) {
  const Array& boundaries = in.segments.boundaries;
  if (!boundaries.present()) return in.q.shape[0];
  Check(boundaries.rank == 1 && boundaries.shape[0] >= 1 && boundaries.dtype == DType::kI64,
        mixer.name, "boundaries must be [N+1] of I64, but are {} of {}", boundaries.ShapeString(),
        NameOf(boundaries.dtype));
  return boundaries.shape[0] - 1;
}

void CheckLengths(const Mixer& mixer, const MixerInputs& in, const MixerDims& d) {
  const bool continues = mixer.family == Family::kCache && in.options.causal && d.S >= d.T;
  Check(in.options.cross || d.S == d.T, mixer.name,
        "k must be as long as q, T={}, but has S={} (set options.cross for another sequence)", d.T,
        d.S);
  Check(!in.options.cross || !in.options.causal || continues, mixer.name,
        "cross-attention must not be causal, but options.causal is set (T={}, S={})", d.T, d.S);
  Check(!in.options.cross || !mixer.self_only, mixer.name,
        "keys must come from the same sequence, but options.cross is set");
  Check(in.options.causal || !mixer.causal_only, mixer.name,
        "the mixer must be causal (it has no other form), but options.causal is not set");
}

void CheckHeads(const Mixer& mixer, const MixerDims& d) {
  const bool state = mixer.family == Family::kState;
  const int64_t many = state ? d.HV : d.H, few = state ? d.H : d.HV;
  Check(d.K >= 1 && d.V >= 1 && d.H >= 1 && d.HV >= 1, mixer.name,
        "heads and channels must be at least 1, but H={}, HV={}, K={}, V={}", d.H, d.HV, d.K, d.V);
  Check(many % few == 0, mixer.name, "{} must be a multiple of {}, but {}={} and {}={}",
        state ? "the value heads" : "the query heads", state ? "the key heads" : "the key heads",
        state ? "HV" : "H", many, state ? "H" : "HKV", few);
}

void CheckWindow(const Mixer& mixer, const MixerOptions& options) {
  Check(mixer.family == Family::kCache || options.window == 0, mixer.name,
        "window must be 0 (only mixers that keep their tokens can leave some out), but is {}",
        options.window);
}

void CheckGates(const Mixer& mixer, const Array& g, const Array& beta) {
  Check(g.present() == (mixer.decay != Decay::kNone), mixer.name, "g must be {}, but is {}",
        mixer.decay == Decay::kNone ? "absent (no decay)" : "given",
        g.present() ? "given" : "absent");
  Check(beta.present() == (mixer.write == Write::kDelta), mixer.name, "beta must be {}, but is {}",
        mixer.write == Write::kAdd ? "absent (no delta rule)" : "given",
        beta.present() ? "given" : "absent");
}

}  // namespace

std::span<const Mixer* const> AllMixers() { return Registry(); }

const Mixer& MixerByName(std::string_view name) {
  std::string known;
  for (const Mixer* mixer : Registry()) {
    if (mixer->name == name) return *mixer;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", mixer->name);
  }
  Fail("mixer", "the mixer must be one of {}, but is '{}'", known, name);
}

MixerDims CheckInputs(const Mixer& mixer, const MixerInputs& in) {
  CheckRank4(mixer.name, "q", in.q, "B,T,H,K");
  CheckRank4(mixer.name, "k", in.k, "B,S,H,K");
  CheckRank4(mixer.name, "v", in.v, "B,S,HV,V");
  MixerDims d;
  d.B = in.q.shape[0], d.T = in.q.shape[1], d.H = in.q.shape[2], d.K = in.q.shape[3];
  d.S = in.k.shape[1], d.HV = in.v.shape[2], d.V = in.v.shape[3];
  d.F = Features(mixer, in.options, d.K);
  d.N = Count(mixer, in);
  const bool state = mixer.family == Family::kState;
  const Checker check{mixer.name, in.q.dtype == DType::kF64};
  check.Values("q", in.q, "B,T,H,K", {d.B, d.T, d.H, d.K});
  check.Values("k", in.k, state ? "B,S,H,K" : "B,S,HKV,K", {d.B, d.S, state ? d.H : d.HV, d.K});
  check.Values("v", in.v, state ? "B,S,HV,V" : "B,S,HKV,V", {d.B, d.S, d.HV, d.V});
  CheckHeads(mixer, d);
  CheckLengths(mixer, in, d);
  CheckGates(mixer, in.g, in.beta);
  if (mixer.decay == Decay::kScalar) check.Values("g", in.g, "B,T,HV", {d.B, d.T, d.HV});
  if (mixer.decay == Decay::kPerChannel)
    check.Values("g", in.g, d.F == d.K ? "B,T,HV,K" : "B,T,HV,F", {d.B, d.T, d.HV, d.F});
  if (mixer.write == Write::kDelta) check.Values("beta", in.beta, "B,T,HV", {d.B, d.T, d.HV});
  CheckWindow(mixer, in.options);
  Check(in.options.eps >= 0, mixer.name, "eps must be at least 0, but is {}", in.options.eps);
  Check(state || (!in.S0.present() && !in.z0.present()), mixer.name,
        "S0 and z0 must be absent, but are given (a mixer of the cache family has no state)");
  if (in.S0.present()) check.State("S0", in.S0, "N,HV,F,V", {d.N, d.HV, d.F, d.V});
  Check(mixer.normalised || !in.z0.present(), mixer.name, "z0 must be absent, but is given");
  if (in.z0.present()) check.State("z0", in.z0, "N,HV,F", {d.N, d.HV, d.F});
  return d;
}

void CheckOutputs(const Mixer& mixer, const MixerDims& d, const MixerOutputs& out) {
  const Checker check{mixer.name, false};
  const int64_t heads = mixer.family == Family::kState ? d.HV : d.H;
  check.Values("o", out.o, "B,T,HV,V", {d.B, d.T, heads, d.V});
  if (out.norm.present()) check.State("norm", out.norm, "B,T,HV", {d.B, d.T, heads});
  if (mixer.family == Family::kCache) return;
  if (out.ST.present()) check.State("ST", out.ST, "N,HV,F,V", {d.N, d.HV, d.F, d.V});
  if (out.zT.present() && mixer.normalised) check.State("zT", out.zT, "N,HV,F", {d.N, d.HV, d.F});
}

void CheckGradients(const Mixer& mixer, const MixerInputs& in, const MixerGradients& grad) {
  const MixerDims d = CheckInputs(mixer, in);
  const Checker check{mixer.name, in.q.dtype == DType::kF64};
  const bool state = mixer.family == Family::kState;
  const auto values = [&](std::string_view name, const Array& a, const Array& like) {
    if (a.present())
      check.Values(name, a, "like its input",
                   {like.shape[0], like.shape[1], like.shape[2], like.shape[3]});
  };
  if (grad.d_o.present())
    check.Values("d_o", grad.d_o, "B,T,HV,V", {d.B, d.T, state ? d.HV : d.H, d.V});
  values("d_q", grad.d_q, in.q);
  values("d_k", grad.d_k, in.k);
  values("d_v", grad.d_v, in.v);
  for (const auto& [name, a] : {std::pair{"d_ST", grad.d_ST}, std::pair{"d_S0", grad.d_S0}})
    if (a.present()) check.State(name, a, "N,HV,F,V", {d.N, d.HV, d.F, d.V});
  for (const auto& [name, a] : {std::pair{"d_zT", grad.d_zT}, std::pair{"d_z0", grad.d_z0}})
    if (a.present()) check.State(name, a, "N,HV,F", {d.N, d.HV, d.F});
  if (grad.d_beta.present()) check.Values("d_beta", grad.d_beta, "B,T,HV", {d.B, d.T, d.HV});
  if (grad.d_g.present() && mixer.decay == Decay::kScalar)
    check.Values("d_g", grad.d_g, "B,T,HV", {d.B, d.T, d.HV});
  if (grad.d_g.present() && mixer.decay == Decay::kPerChannel) values("d_g", grad.d_g, in.g);
}

void CheckStep(const Mixer& mixer, const StepInputs& in) {
  const auto rank3 = [&](std::string_view name, const Array& a) {
    if (a.rank != 3 || a.dtype != DType::kF32)
      Fail(mixer.name, "{} must be [n,heads,channels] of F32, but is {} of {}", name,
           a.ShapeString(), NameOf(a.dtype));
  };
  rank3("q", in.q), rank3("k", in.k), rank3("v", in.v), rank3("o", in.o);
  MixerDims d;
  d.N = in.q.shape[0], d.H = in.q.shape[1], d.K = in.q.shape[2];
  d.HV = in.v.shape[1], d.V = in.v.shape[2];
  d.F = Features(mixer, in.options, d.K);
  CheckHeads(mixer, d);
  CheckWindow(mixer, in.options);
  const bool state = mixer.family == Family::kState;
  const Checker check{mixer.name, false};
  check.Shape("q", in.q, "n,H,K", {d.N, d.H, d.K});
  check.Shape("k", in.k, "n,HK,K", {d.N, state ? d.H : d.HV, d.K});
  check.Shape("v", in.v, "n,HV,V", {d.N, d.HV, d.V});
  check.Shape("o", in.o, "n,HO,V", {d.N, state ? d.HV : d.H, d.V});
  Check(in.options.eps >= 0, mixer.name, "eps must be at least 0, but is {}", in.options.eps);
  CheckGates(mixer, in.g, in.beta);
  if (mixer.decay == Decay::kScalar) check.State("g", in.g, "n,HV", {d.N, d.HV});
  if (mixer.decay == Decay::kPerChannel)
    check.State("g", in.g, d.F == d.K ? "n,HV,K" : "n,HV,F", {d.N, d.HV, d.F});
  if (mixer.write == Write::kDelta) check.State("beta", in.beta, "n,HV", {d.N, d.HV});
  CheckStepLogDecay(mixer.name, in.g);
}

}  // namespace linattn
