// One logistic's mass in a pixel's bin, its logarithm and derivatives, in the form that float32 can
// bear: see docs/numerics.md. Definitions in logistic_mixture.h; here for a lane's x, mu_ci and raw
// log-scale.
#if defined(LINATTN_LOGISTIC_BIN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_LOGISTIC_BIN_INL_H_
#undef LINATTN_LOGISTIC_BIN_INL_H_
#else
#define LINATTN_LOGISTIC_BIN_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace linattn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using Vec = hn::Vec<D>;
using Mask = hn::Mask<D>;

struct BinTerm {
  Vec log_p, d_mean, d_raw_scale;
};

// The place of a bin on the logistic's axis: [b, a] = [u - d, u + d], and e^-|.| of each.
struct BinPlace {
  Mask leftmost, rightmost;  // pixel 0, pixel 255
  Mask clamped;              // raw log-scale below -7
  Vec s, inv;                // log-scale, e^-s
  Vec u, d, a, b, exp_u, exp_a, exp_b;
  Vec gap;  // 1 - e^{-2d}
};

HWY_INLINE BinPlace PlaceBin(Vec x, Vec mean, Vec raw_scale) {
  const D tag;
  BinPlace bin;
  bin.leftmost = hn::Eq(x, hn::Set(tag, -1.0f));
  bin.rightmost = hn::Eq(x, hn::Set(tag, 1.0f));
  bin.clamped = hn::Lt(raw_scale, hn::Set(tag, -7.0f));
  bin.s = hn::IfThenElse(bin.clamped, hn::Set(tag, -7.0f), raw_scale);
  bin.inv = hn::Exp(tag, hn::Neg(bin.s));
  bin.u = hn::Mul(hn::Sub(x, mean), bin.inv);
  bin.d = hn::Mul(bin.inv, hn::Set(tag, 1.0f / 255.0f));
  bin.a = hn::Add(bin.u, bin.d);
  bin.b = hn::Sub(bin.u, bin.d);
  bin.exp_u = hn::Exp(tag, hn::Neg(hn::Abs(bin.u)));
  bin.exp_a = hn::Exp(tag, hn::Neg(hn::Abs(bin.a)));
  bin.exp_b = hn::Exp(tag, hn::Neg(hn::Abs(bin.b)));
  bin.gap = hn::Neg(hn::Expm1(tag, hn::Mul(hn::Set(tag, -2.0f), bin.d)));
  return bin;
}

// sigma(z), where e = e^-|z|.
HWY_INLINE Vec Sigmoid(Vec z, Vec e) {
  const D tag;
  const Vec one = hn::Set(tag, 1.0f);
  return hn::Div(hn::IfThenElse(hn::Lt(z, hn::Zero(tag)), e, one), hn::Add(one, e));
}

// log P, and whether the bin is `thin`: inside, and of mass not above 1e-5. sigma(a) - sigma(b) is
// gap sigma(a) sigma(-b), and sigma(z) = e^min(z,0) / (1 + e^-|z|): the factors 1/(1 + e^-|z|) and
// gap go into one log, the exponents min(z,0) stay outside. An edge bin has one sigma and no gap.
HWY_INLINE Vec LogMass(const BinPlace& bin, Mask edge, Mask* thin) {
  const D tag;
  const Vec zero = hn::Zero(tag), one = hn::Set(tag, 1.0f);
  const Vec above = hn::IfThenElse(bin.rightmost, one, hn::Add(one, bin.exp_a));
  const Vec below = hn::IfThenElse(bin.leftmost, one, hn::Add(one, bin.exp_b));
  const Vec mass = hn::Div(hn::IfThenElse(edge, one, bin.gap), hn::Mul(above, below));
  const Vec linear = hn::Add(hn::IfThenZeroElse(bin.rightmost, hn::Max(hn::Neg(bin.a), zero)),
                             hn::IfThenZeroElse(bin.leftmost, hn::Max(bin.b, zero)));
  const Vec exp_linear = hn::Mul(hn::IfThenElse(hn::Lt(bin.a, zero), bin.exp_a, one),
                                 hn::IfThenElse(hn::Gt(bin.b, zero), bin.exp_b, one));
  *thin = hn::AndNot(edge, hn::Le(hn::Mul(mass, exp_linear), hn::Set(tag, 1e-5f)));

  // Thin: u - s - 2 softplus(u) - log(127.5) = -2 log(1 + e^-|u|) - (|u| + s + log(127.5)).
  const Vec one_u = hn::Add(one, bin.exp_u);
  const Vec thin_mass = hn::Div(one, hn::Mul(one_u, one_u));
  const Vec thin_linear = hn::Add(hn::Add(hn::Abs(bin.u), bin.s), hn::Set(tag, 4.8481163645f));
  return hn::Sub(hn::Log(tag, hn::IfThenElse(*thin, thin_mass, mass)),
                 hn::IfThenElse(*thin, thin_linear, linear));
}

HWY_INLINE BinTerm EvaluateBin(Vec x, Vec mean, Vec raw_scale) {
  const D tag;
  const Vec one = hn::Set(tag, 1.0f), two = hn::Set(tag, 2.0f);
  const BinPlace bin = PlaceBin(x, mean, raw_scale);
  const Mask edge = hn::Or(bin.leftmost, bin.rightmost);
  Mask thin;
  const Vec log_p = LogMass(bin, edge, &thin);
  // d log sigma(a) / da and -d log sigma(-b) / db.
  const Vec up = hn::IfThenZeroElse(bin.rightmost, Sigmoid(hn::Neg(bin.a), bin.exp_a));
  const Vec down = hn::IfThenZeroElse(bin.leftmost, Sigmoid(bin.b, bin.exp_b));
  const Vec thin_d_u = hn::NegMulAdd(two, Sigmoid(bin.u, bin.exp_u), one);
  const Vec d_u = hn::IfThenElse(thin, thin_d_u, hn::Sub(up, down));
  // d log gap / dd = 2 e^{-2d} / gap. A gap that underflows makes NaN here, but only in thin bins.
  const Vec d_gap = hn::Div(hn::Mul(two, hn::Sub(one, bin.gap)), bin.gap);
  const Vec d_d = hn::Add(hn::Add(up, down), hn::IfThenZeroElse(edge, d_gap));
  // du/ds = -u, dd/ds = -d; a thin bin has -s instead of the latter.
  const Vec minus_d_s = hn::MulAdd(bin.u, d_u, hn::IfThenElse(thin, one, hn::Mul(bin.d, d_d)));
  return {log_p, hn::Neg(hn::Mul(bin.inv, d_u)),
          hn::IfThenZeroElse(bin.clamped, hn::Neg(minus_d_s))};
}

}  // namespace linattn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
