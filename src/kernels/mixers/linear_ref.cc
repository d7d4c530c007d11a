#include "base/error.h"
#include "kernels/mixers/linear.h"

namespace linattn::linear_ref {
namespace {

void CheckDoubles(const MixerInputs& in) {
  Check(in.q.dtype == DType::kF64, "linear", "q must be F64 for the reference, but is {}",
        NameOf(in.q.dtype));
}

void Fill(const Array& a, double value) {
  if (!a.present()) return;
  for (int64_t i = 0; i < a.shape[0]; ++i)
    for (int64_t j = 0; j < a.shape[1]; ++j)
      for (int64_t k = 0; k < a.shape[2]; ++k)
        for (int64_t l = 0; l < (a.rank == 4 ? a.shape[3] : 1); ++l)
          *a.At<double>(i, j, k, l) = value;
}

// a [N,HV,F,V] and b [N,HV,F] of this head <- S, z; absent ones are skipped.
void StoreState(const Head& head, const Vector& S, const Vector& z, const Array& a,
                const Array& b) {
  for (int64_t f = 0; f < head.d.F; ++f) {
    for (int64_t c = 0; c < head.d.V && a.present(); ++c)
      *a.At<double>(head.n, head.head, f, c) = S[f * head.d.V + c];
    if (b.present()) *b.At<double>(head.n, head.head, f) = z[f];
  }
}

template <class Run>
void ForEachHead(const MixerInputs& in, const Run& run) {
  const MixerDims dims = CheckInputs(k_linear, in);
  const Sequences sequences = ResolveSegments(in, dims);
  for (int64_t n = 0; n < dims.N; ++n) {
    for (int64_t h = 0; h < dims.HV; ++h) {
      Head head{in, dims, sequences.queries[n], sequences.keys[n], n, h};
      head.Start();
      run(head);
    }
  }
}

// d_q of query i, with S and z as it read them.
void QueryGradient(const Head& head, const MixerGradients& grad, int64_t i) {
  const MixerDims& d = head.d;
  const TokenList& tokens = head.queries;
  if (!grad.d_q.present() || !grad.d_o.present()) return;
  Vector dn(d.V), d_phi(d.F);
  const double dd =
      head.OutputGradient(i, grad.d_o.At<double>(tokens.row, tokens[i], head.head), dn);
  for (int64_t f = 0; f < d.F; ++f) {
    d_phi[f] = head.scale() * dd * head.z[f];
    for (int64_t c = 0; c < d.V; ++c) d_phi[f] += head.scale() * head.S[f * d.V + c] * dn[c];
  }
  head.AddThroughPhi(head.in.q, tokens, i, d_phi,
                     grad.d_q.At<double>(tokens.row, tokens[i], head.head / (d.HV / d.H)));
}

// L += scale phi(q) dn^T, l += scale phi(q) dd. dn [V], dd as they were when the query read.
void AddReadGradient(Head& head, int64_t i, const Vector& dn, double dd) {
  const Vector q = head.Features(head.in.q, head.queries, i);
  for (int64_t f = 0; f < head.d.F; ++f) {
    for (int64_t c = 0; c < head.d.V; ++c) head.L[f * head.d.V + c] += head.scale() * q[f] * dn[c];
    head.l[f] += head.scale() * q[f] * dd;
  }
}

// d_v = L^T phi(k), d_phi(k) = L v + l.
void WriteGradient(const Head& head, const MixerGradients& grad, int64_t i) {
  const MixerDims& d = head.d;
  const TokenList& tokens = head.keys;
  const Vector k = head.Features(head.in.k, tokens, i);
  const double* v = head.Row(head.in.v, tokens, i);
  Vector d_phi(d.F);
  for (int64_t f = 0; f < d.F; ++f) {
    if (head.in.options.normalise) d_phi[f] = head.l[f];
    for (int64_t c = 0; c < d.V; ++c) {
      d_phi[f] += head.L[f * d.V + c] * v[c];
      if (grad.d_v.present())
        grad.d_v.At<double>(tokens.row, tokens[i], head.head)[c] += head.L[f * d.V + c] * k[f];
    }
  }
  if (grad.d_k.present())
    head.AddThroughPhi(head.in.k, tokens, i, d_phi,
                       grad.d_k.At<double>(tokens.row, tokens[i], head.head / (d.HV / d.H)));
}

void StartGradients(Head& head, const MixerGradients& grad) {
  for (int64_t f = 0; f < head.d.F; ++f) {
    for (int64_t c = 0; c < head.d.V; ++c)
      head.L[f * head.d.V + c] =
          grad.d_ST.present() ? *grad.d_ST.At<double>(head.n, head.head, f, c) : 0;
    head.l[f] = grad.d_zT.present() ? *grad.d_zT.At<double>(head.n, head.head, f) : 0;
  }
}

void BackwardHead(Head& head, const MixerGradients& grad) {
  const int64_t T = head.queries.length, S = head.keys.length;
  const bool causal = head.in.options.causal;
  std::vector<Vector> dn(T, Vector(head.d.V));
  Vector dd(T);
  for (int64_t i = 0; i < S && !causal; ++i) head.Write(i);
  for (int64_t i = 0; i < T; ++i) {
    if (causal) head.Write(i);
    QueryGradient(head, grad, i);
    if (grad.d_o.present())
      dd[i] = head.OutputGradient(
          i, grad.d_o.At<double>(head.queries.row, head.queries[i], head.head), dn[i]);
  }
  StartGradients(head, grad);
  for (int64_t i = T - 1; i >= 0; --i) {
    AddReadGradient(head, i, dn[i], dd[i]);
    if (causal) WriteGradient(head, grad, i);
  }
  for (int64_t i = 0; i < S && !causal; ++i) WriteGradient(head, grad, i);
  StoreState(head, head.L, head.l, grad.d_S0, grad.d_z0);
}

}  // namespace

void Forward(const MixerInputs& in, const MixerOutputs& out) {
  CheckDoubles(in);
  Fill(out.o, 0);
  Fill(out.norm, 0);
  ForEachHead(in, [&](Head& head) {
    const TokenList& tokens = head.queries;
    const bool causal = in.options.causal;
    for (int64_t i = 0; i < head.keys.length && !causal; ++i) head.Write(i);
    for (int64_t i = 0; i < tokens.length; ++i) {
      if (causal) head.Write(i);
      const double den = head.Read(i, out.o.At<double>(tokens.row, tokens[i], head.head));
      if (out.norm.present()) *out.norm.At<double>(tokens.row, tokens[i], head.head) = den;
    }
    StoreState(head, head.S, head.z, out.ST, out.zT);
  });
}

void Backward(const MixerInputs& in, const MixerOutputs&, const MixerGradients& grad) {
  CheckDoubles(in);
  for (const Array& d : {grad.d_q, grad.d_k, grad.d_v}) Fill(d, 0);
  ForEachHead(in, [&](Head& head) { BackwardHead(head, grad); });
}

}  // namespace linattn::linear_ref
