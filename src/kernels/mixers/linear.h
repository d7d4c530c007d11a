#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/mixer.h"

// linear: attention whose softmax is replaced by a product of features, so that the past fits into
// one matrix.
//
//     S_t = S_{t-1} + phi(k_t) v_t^T            z_t = z_{t-1} + phi(k_t)
//     o_t = scale S_t^T phi(q_t) / (scale phi(q_t) . z_t + eps)
//
// Not causal: every query reads the sums over all keys. options.normalise = false: o_t = scale
// S_t^T phi(q_t), and z stays as it is. 0/0 is 0. Value head j reads query/key head j / (HV/H).
//
// The caller owes: features that are not negative where the output is normalised (elu1, relu,
// squared_relu); eps > 0 where they can all vanish; `norm` from forward to backward.
//
// Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive Transformers with Linear
// Attention".
namespace linattn {

extern const Mixer k_linear;

// ---- The definition, in float64. Nobody may optimise it. ----

namespace linear_ref {

using Vector = std::vector<double>;

// One value head of one sequence: its state S [F,V], z [F], and what becomes of them and of their
// gradients L, l.
struct Head {
  const MixerInputs& in;
  const MixerDims& d;
  const TokenList &queries, &keys;
  int64_t n, head;
  Vector S = Vector(d.F * d.V), z = Vector(d.F), L = S, l = z;

  const FeatureMap& phi() const {
    return in.options.feature_map ? *in.options.feature_map : FeatureMapByName("elu1");
  }
  double scale() const { return in.options.scale != 0 ? in.options.scale : 1; }
  const double* Row(const Array& x, const TokenList& tokens, int64_t i) const {
    return x.At<double>(tokens.row, tokens[i], &x == &in.v ? head : head / (d.HV / d.H));
  }
  Vector Features(const Array& x, const TokenList& tokens, int64_t i) const {
    Vector y(d.F);
    phi().Forward(Row(x, tokens, i), 1, d.K, y.data());
    return y;
  }

  void Start() {
    for (int64_t f = 0; f < d.F; ++f) {
      for (int64_t c = 0; c < d.V; ++c)
        S[f * d.V + c] = in.S0.present() ? *in.S0.At<double>(n, head, f, c) : 0;
      z[f] = in.z0.present() ? *in.z0.At<double>(n, head, f) : 0;
    }
  }

  void Write(int64_t i) {
    const Vector k = Features(in.k, keys, i);
    const double* v = Row(in.v, keys, i);
    for (int64_t f = 0; f < d.F; ++f) {
      for (int64_t c = 0; c < d.V; ++c) S[f * d.V + c] += k[f] * v[c];
      if (in.options.normalise) z[f] += k[f];
    }
  }

  // o [V] of query i; returns what it was divided by.
  double Read(int64_t i, double* o) const {
    const Vector q = Features(in.q, queries, i);
    double den = in.options.eps;
    for (int64_t f = 0; f < d.F; ++f) den += scale() * q[f] * z[f];
    if (!in.options.normalise) den = 1;
    for (int64_t c = 0; c < d.V; ++c) {
      o[c] = 0;
      for (int64_t f = 0; f < d.F; ++f) o[c] += scale() * q[f] * S[f * d.V + c];
      o[c] = den != 0 ? o[c] / den : 0;
    }
    return den;
  }

  // Gradients of the numerator, dn [V], and of the denominator (returned), for query i.
  double OutputGradient(int64_t i, const double* d_o, Vector& dn) const {
    Vector o(d.V);
    const double den = Read(i, o.data());
    double dd = 0;
    for (int64_t c = 0; c < d.V; ++c) {
      dn[c] = den != 0 ? d_o[c] / den : 0;
      if (in.options.normalise) dd -= dn[c] * o[c];
    }
    return dd;
  }

  // d_x += the gradient of x through phi.
  void AddThroughPhi(const Array& x, const TokenList& tokens, int64_t i, const Vector& d_y,
                     double* d_x) const {
    const Vector y = Features(x, tokens, i);
    Vector step(d.K);
    phi().Backward(Row(x, tokens, i), y.data(), d_y.data(), 1, d.K, step.data());
    for (int64_t c = 0; c < d.K; ++c) d_x[c] += step[c];
  }
};

void Forward(const MixerInputs& in, const MixerOutputs& out);
// The sequential adjoint: d_q with the state running forwards; then L and l, the gradients of S and
// z, backwards.
void Backward(const MixerInputs& in, const MixerOutputs& out, const MixerGradients& grad);

}  // namespace linear_ref
}  // namespace linattn
