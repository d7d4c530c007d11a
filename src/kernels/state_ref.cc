#include "kernels/state_ref.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/log_decay.h"
#include "kernels/normaliser.h"
#include "kernels/state_mixer.h"

namespace linattn {
namespace {

using Vector = std::vector<double>;

struct State {
  Vector S, z;  // [F,V], [F]
};

// One value head of one sequence. i counts its tokens.
struct Head {
  const Mixer& mixer;
  const MixerInputs& in;
  const MixerDims& d;
  const TokenList &queries, &keys;
  int64_t n, head;

  bool delta() const { return mixer.write == Write::kDelta; }
  bool normalises() const { return mixer.normalised && in.options.normalise; }
  double scale() const { return ScaleOf(mixer, in.options, d.K); }
  int64_t key_head() const { return head / (d.HV / d.H); }

  Vector Features(const FeatureMap& phi, const double* x) const {
    Vector y(d.F);
    phi.Forward(x, 1, d.K, y.data());
    return y;
  }
  const double* RawQ(int64_t i) const {
    return in.q.At<double>(queries.row, queries[i], key_head());
  }
  const double* RawK(int64_t i) const { return in.k.At<double>(keys.row, keys[i], key_head()); }
  Vector Q(int64_t i) const { return Features(QueryMap(mixer, in.options), RawQ(i)); }
  Vector K(int64_t i) const { return Features(KeyMap(mixer, in.options), RawK(i)); }
  const double* v(int64_t i) const { return in.v.At<double>(keys.row, keys[i], head); }
  double beta(int64_t i) const {
    return delta() ? *in.beta.At<double>(keys.row, keys[i], head) : 1;
  }
  // What feature f keeps of the past.
  double decay(int64_t i, int64_t f) const {
    if (mixer.decay == Decay::kNone) return 1;
    const double* g = in.g.At<double>(keys.row, keys[i], head);
    return std::exp(g[mixer.decay == Decay::kScalar ? 0 : f]);
  }

  State Initial() const {
    State s{Vector(d.F * d.V), Vector(d.F)};
    for (int64_t f = 0; f < d.F; ++f) {
      for (int64_t c = 0; c < d.V && in.S0.present(); ++c)
        s.S[f * d.V + c] = *in.S0.At<double>(n, head, f, c);
      if (in.z0.present()) s.z[f] = *in.z0.At<double>(n, head, f);
    }
    return s;
  }

  // r = v - rho D^T k.
  Vector Residual(const State& D, const Vector& k, int64_t i) const {
    Vector r(v(i), v(i) + d.V);
    for (int64_t f = 0; f < d.F && delta(); ++f)
      for (int64_t c = 0; c < d.V; ++c) r[c] -= D.S[f * d.V + c] * k[f];
    return r;
  }

  void Forget(State& s, int64_t i) const {
    for (int64_t f = 0; f < d.F && mixer.decay != Decay::kNone; ++f) {
      const double a = decay(i, f);
      for (int64_t c = 0; c < d.V; ++c) s.S[f * d.V + c] *= a;
      if (normalises()) s.z[f] *= a;
    }
  }

  void Write(State& s, int64_t i) const {
    Forget(s, i);
    const Vector k = K(i), r = Residual(s, k, i);
    const double strength = beta(i);
    for (int64_t f = 0; f < d.F; ++f) {
      for (int64_t c = 0; c < d.V; ++c) s.S[f * d.V + c] += strength * k[f] * r[c];
      if (normalises()) s.z[f] += k[f];
    }
  }

  // o [V] of query i; returns what it was divided by.
  double Read(const State& s, int64_t i, double* o) const {
    Vector q = Q(i);
    for (double& x : q) x *= scale();
    double den = in.options.eps;
    for (int64_t f = 0; f < d.F; ++f) den += q[f] * s.z[f];
    if (!normalises()) den = 1;
    std::fill_n(o, d.V, 0.0);
    for (int64_t f = 0; f < d.F; ++f)
      for (int64_t c = 0; c < d.V; ++c) o[c] += q[f] * s.S[f * d.V + c];
    for (int64_t c = 0; c < d.V; ++c) o[c] *= InverseNormaliser(den);
    return den;
  }

  // a [N,HV,F,V] and b [N,HV,F] of this head <- S, z; absent ones are skipped.
  void Store(const State& s, const Array& a, const Array& b) const {
    for (int64_t f = 0; f < d.F; ++f) {
      for (int64_t c = 0; c < d.V && a.present(); ++c)
        *a.At<double>(n, head, f, c) = s.S[f * d.V + c];
      if (b.present()) *b.At<double>(n, head, f) = s.z[f];
    }
  }
};

// The gradients of one head, with L, l those of S, z.
struct Adjoint {
  const Head& head;
  const MixerGradients& grad;
  State L;

  Adjoint(const Head& h, const MixerGradients& g)
      : head(h), grad(g), L{Vector(h.d.F * h.d.V), Vector(h.d.F)} {
    const MixerDims& d = head.d;
    for (int64_t f = 0; f < d.F; ++f) {
      for (int64_t c = 0; c < d.V && grad.d_ST.present(); ++c)
        L.S[f * d.V + c] = *grad.d_ST.At<double>(head.n, head.head, f, c);
      if (grad.d_zT.present()) L.z[f] = *grad.d_zT.At<double>(head.n, head.head, f);
    }
  }

  // d_x += the gradient of x through phi.
  void AddThrough(const FeatureMap& phi, const double* x, const Vector& d_y, double* d_x) const {
    const Vector y = head.Features(phi, x);
    Vector step(head.d.K);
    phi.Backward(x, y.data(), d_y.data(), 1, head.d.K, step.data());
    for (int64_t c = 0; c < head.d.K; ++c) d_x[c] += step[c];
  }

  // Query i read s: L += scale q dn^T, l += scale q dd, d_q = scale (S dn + z dd).
  void Read(const State& s, int64_t i) {
    const MixerDims& d = head.d;
    if (!grad.d_o.present()) return;
    const int64_t row = head.queries.row, t = head.queries[i];
    const double* d_o = grad.d_o.At<double>(row, t, head.head);
    Vector o(d.V), dn(d.V), d_phi(d.F);
    const double inverse = InverseNormaliser(head.Read(s, i, o.data())), scale = head.scale();
    double dd = 0;
    for (int64_t c = 0; c < d.V; ++c) {
      dn[c] = d_o[c] * inverse;
      if (head.normalises()) dd -= dn[c] * o[c];
    }
    const Vector q = head.Q(i);
    for (int64_t f = 0; f < d.F; ++f) {
      d_phi[f] = scale * dd * s.z[f];
      L.z[f] += scale * q[f] * dd;
      for (int64_t c = 0; c < d.V; ++c) {
        d_phi[f] += scale * s.S[f * d.V + c] * dn[c];
        L.S[f * d.V + c] += scale * q[f] * dn[c];
      }
    }
    if (grad.d_q.present())
      AddThrough(QueryMap(head.mixer, head.in.options), head.RawQ(i), d_phi,
                 grad.d_q.At<double>(row, t, head.key_head()));
  }

  // Token i wrote onto `before`: turns L, l after it into those before it.
  void Write(const State& before, int64_t i) {
    const MixerDims& d = head.d;
    State D = before;
    head.Forget(D, i);
    const Vector k = head.K(i), r = head.Residual(D, k, i);
    const double beta = head.beta(i);
    Vector dr(d.V), d_phi(d.F);
    double d_beta = 0;
    for (int64_t f = 0; f < d.F; ++f) {
      if (head.normalises()) d_phi[f] = L.z[f];
      for (int64_t c = 0; c < d.V; ++c) {
        const double l = L.S[f * d.V + c];
        d_beta += k[f] * l * r[c];
        dr[c] += beta * l * k[f];
        d_phi[f] += beta * l * r[c];
      }
    }
    for (int64_t f = 0; f < d.F && head.delta(); ++f) {
      for (int64_t c = 0; c < d.V; ++c) {
        d_phi[f] -= D.S[f * d.V + c] * dr[c];
        L.S[f * d.V + c] -= k[f] * dr[c];  // now dD
      }
    }
    StoreGate(D, i);
    Forget(i);
    StoreToken(i, dr, d_beta, d_phi);
  }

  // d_g: rows of dD * D, and of l * (what z was after the decay).
  void StoreGate(const State& D, int64_t i) const {
    if (!grad.d_g.present()) return;
    const MixerDims& d = head.d;
    const bool scalar = head.mixer.decay == Decay::kScalar;
    double* d_g = grad.d_g.At<double>(head.keys.row, head.keys[i], head.head);
    for (int64_t f = 0; f < d.F; ++f) {
      double& sum = d_g[scalar ? 0 : f];
      if (head.normalises()) sum += L.z[f] * D.z[f];
      for (int64_t c = 0; c < d.V; ++c) sum += L.S[f * d.V + c] * D.S[f * d.V + c];
    }
  }
  void Forget(int64_t i) { head.Forget(L, i); }

  void StoreToken(int64_t i, const Vector& d_v, double d_beta, const Vector& d_phi) const {
    const int64_t row = head.keys.row, t = head.keys[i];
    for (int64_t c = 0; c < head.d.V && grad.d_v.present(); ++c)
      grad.d_v.At<double>(row, t, head.head)[c] = d_v[c];
    if (grad.d_beta.present()) *grad.d_beta.At<double>(row, t, head.head) = d_beta;
    if (grad.d_k.present())
      AddThrough(KeyMap(head.mixer, head.in.options), head.RawK(i), d_phi,
                 grad.d_k.At<double>(row, t, head.key_head()));
  }
};

// Backward in time over tokens whose states are made again from those kept at every `step`-th
// token.
void CausalBackward(const Head& head, Adjoint& adjoint) {
  const int64_t T = head.keys.length;
  const auto step = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(T))));
  std::vector<State> kept;
  State s = head.Initial();
  for (int64_t i = 0; i < T; ++i) {
    if (i % step == 0) kept.push_back(s);
    head.Write(s, i);
  }
  for (int64_t end = T; !kept.empty(); kept.pop_back()) {
    const int64_t begin = (static_cast<int64_t>(kept.size()) - 1) * step;
    std::vector<State> states = {kept.back()};  // before token begin + j
    for (int64_t i = begin; i < end; ++i) {
      states.push_back(states.back());
      head.Write(states.back(), i);
    }
    for (int64_t i = end - 1; i >= begin; --i) {
      adjoint.Read(states[i - begin + 1], i);
      adjoint.Write(states[i - begin], i);
    }
    end = begin;
  }
}

void FullBackward(const Head& head, Adjoint& adjoint) {
  State s = head.Initial();
  for (int64_t i = 0; i < head.keys.length; ++i) head.Write(s, i);
  for (int64_t i = 0; i < head.queries.length; ++i) adjoint.Read(s, i);
  for (int64_t i = 0; i < head.keys.length; ++i)
    adjoint.Write(s, i);  // D is not used: no delta rule
}

void Zero(const Array& a) {
  for (int64_t i = 0; i < a.size(); ++i) {
    int64_t at = 0, rest = i;
    for (int axis = a.rank - 1; axis >= 0; --axis) {
      at += rest % a.shape[axis] * a.stride[axis];
      rest /= a.shape[axis];
    }
    static_cast<double*>(a.data)[at] = 0;
  }
}

// A call whose inputs have been checked.
struct Call {
  const Mixer& mixer;
  const MixerInputs& in;
  MixerDims dims;
  Sequences sequences;

  Call(const Mixer& m, const MixerInputs& inputs)
      : mixer(m), in(inputs), dims(CheckInputs(m, in)), sequences(ResolveSegments(in, dims)) {
    Check(in.q.dtype == DType::kF64, mixer.name, "q must be F64 for the reference, but is {}",
          NameOf(in.q.dtype));
    CheckLogDecay(mixer.name, in.g, sequences);
  }
  template <class Run>
  void ForEachHead(const Run& run) const {
    for (int64_t n = 0; n < dims.N; ++n)
      for (int64_t h = 0; h < dims.HV; ++h)
        run(Head{mixer, in, dims, sequences.queries[n], sequences.keys[n], n, h});
  }
};

}  // namespace

void StateForwardRef(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out) {
  const Call call(mixer, in);
  const Array norm = mixer.normalised ? out.norm : Array();
  Zero(out.o), Zero(norm);
  call.ForEachHead([&](const Head& head) {
    const TokenList& tokens = head.queries;
    State s = head.Initial();
    for (int64_t i = 0; i < head.keys.length && !in.options.causal; ++i) head.Write(s, i);
    for (int64_t i = 0; i < tokens.length; ++i) {
      if (in.options.causal) head.Write(s, i);
      const double den = head.Read(s, i, out.o.At<double>(tokens.row, tokens[i], head.head));
      if (norm.present()) *norm.At<double>(tokens.row, tokens[i], head.head) = den;
    }
    head.Store(s, out.ST, mixer.normalised ? out.zT : Array());
  });
}

void StateBackwardRef(const Mixer& mixer, const MixerInputs& in, const MixerOutputs&,
                      const MixerGradients& grad) {
  const Call call(mixer, in);
  for (const Array& d : {grad.d_q, grad.d_k, grad.d_v, grad.d_g, grad.d_beta}) Zero(d);
  call.ForEachHead([&](const Head& head) {
    Adjoint adjoint(head, grad);
    if (in.options.causal)
      CausalBackward(head, adjoint);
    else
      FullBackward(head, adjoint);
    head.Store(adjoint.L, grad.d_S0, mixer.normalised ? grad.d_z0 : Array());
  });
}

}  // namespace linattn
