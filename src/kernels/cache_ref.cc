#include "kernels/cache_ref.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace linattn {
namespace {

double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void Fill(const Array& a, double value) {
  if (!a.present()) return;
  for (int64_t i = 0; i < a.shape[0]; ++i)
    for (int64_t j = 0; j < a.shape[1]; ++j)
      for (int64_t k = 0; k < a.shape[2]; ++k)
        for (int64_t l = 0; l < (a.rank == 4 ? a.shape[3] : 1); ++l)
          *a.At<double>(i, j, k, l) = value;
}

// The arrays of one call, by places of one sequence.
struct Reader {
  const MixerInputs& in;
  const MixerDims& dims;
  const SeenTimes& seen;

  double scale() const {
    return in.options.scale != 0 ? in.options.scale : 1 / std::sqrt(static_cast<double>(dims.K));
  }
  int64_t kv(const CacheQuery& x) const { return x.h / (dims.H / dims.HV); }
  const double* q(const CacheQuery& x) const {
    return in.q.At<double>(x.queries.row, x.queries[x.i], x.h);
  }
  const double* k(const CacheQuery& x, int64_t s) const {
    return in.k.At<double>(x.keys.row, x.keys[s], kv(x));
  }
  const double* v(const CacheQuery& x, int64_t s) const {
    return in.v.At<double>(x.keys.row, x.keys[s], kv(x));
  }

  // p over the keys of the sequence; returns l.
  double Probabilities(const CacheQuery& x, std::vector<double>& p) const {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    std::vector<int> times(x.keys.length, 0);
    seen(x, times);
    p.assign(x.keys.length, 0);
    for (int64_t s = 0; s < x.keys.length; ++s) {
      if (times[s] == 0) continue;
      p[s] = scale() * Dot(q(x), k(x, s), dims.K);
      max = std::max(max, p[s]);
    }
    for (int64_t s = 0; s < x.keys.length; ++s)
      sum += p[s] = times[s] == 0 ? 0 : times[s] * std::exp(p[s] - max);
    for (double& weight : p) weight = sum > 0 ? weight / sum : 0;
    return max + std::log(sum);
  }
};

template <class Body>
void ForEachQuery(const Sequences& sequences, const MixerDims& dims, const Body& body) {
  for (int64_t n = 0; n < dims.N; ++n)
    for (int64_t i = 0; i < sequences.queries[n].length; ++i)
      for (int64_t h = 0; h < dims.H; ++h)
        body(CacheQuery{sequences.queries[n], sequences.keys[n], i, h});
}

}  // namespace

MixerDims CheckDoubles(const Mixer& mixer, const MixerInputs& in) {
  Check(in.q.dtype == DType::kF64, mixer.name, "q must be F64 for the reference, but is {}",
        NameOf(in.q.dtype));
  return CheckInputs(mixer, in);
}

void CacheForwardRef(const MixerInputs& in, const MixerDims& dims, const MixerOutputs& out,
                     const SeenTimes& seen) {
  const Sequences sequences = ResolveSegments(in, dims);
  const Reader read{in, dims, seen};
  Fill(out.o, 0);
  Fill(out.norm, -std::numeric_limits<double>::infinity());
  std::vector<double> p;
  ForEachQuery(sequences, dims, [&](const CacheQuery& x) {
    const int64_t row = x.queries.row, t = x.queries[x.i];
    const double l = read.Probabilities(x, p);
    if (out.norm.present()) *out.norm.At<double>(row, t, x.h) = l;
    double* o = out.o.At<double>(row, t, x.h);
    for (int64_t s = 0; s < x.keys.length; ++s) {
      if (p[s] == 0) continue;
      const double* v = read.v(x, s);
      for (int64_t c = 0; c < dims.V; ++c) o[c] += p[s] * v[c];
    }
  });
}

void CacheBackwardRef(const MixerInputs& in, const MixerDims& dims, const MixerGradients& grad,
                      const SeenTimes& seen) {
  const Sequences sequences = ResolveSegments(in, dims);
  const Reader read{in, dims, seen};
  for (const Array& d : {grad.d_q, grad.d_k, grad.d_v}) Fill(d, 0);
  if (!grad.d_o.present()) return;
  std::vector<double> p, d_p;
  const auto add = [](double factor, const double* x, int64_t n, const Array& to, int64_t b,
                      int64_t t, int64_t h) {
    if (!to.present()) return;
    double* y = to.At<double>(b, t, h);
    for (int64_t c = 0; c < n; ++c) y[c] += factor * x[c];
  };
  ForEachQuery(sequences, dims, [&](const CacheQuery& x) {
    const int64_t row = x.queries.row, t = x.queries[x.i], k_row = x.keys.row, kv = read.kv(x);
    read.Probabilities(x, p);
    const double* d_o = grad.d_o.At<double>(row, t, x.h);
    d_p.assign(x.keys.length, 0);
    for (int64_t s = 0; s < x.keys.length; ++s)
      if (p[s] != 0) d_p[s] = Dot(d_o, read.v(x, s), dims.V);
    const double mean = Dot(p.data(), d_p.data(), x.keys.length);
    for (int64_t s = 0; s < x.keys.length; ++s) {
      if (p[s] == 0) continue;
      const double d_x = read.scale() * p[s] * (d_p[s] - mean);
      add(d_x, read.k(x, s), dims.K, grad.d_q, row, t, x.h);
      add(d_x, read.q(x), dims.K, grad.d_k, k_row, x.keys[s], kv);
      add(p[s], d_o, dims.V, grad.d_v, k_row, x.keys[s], kv);
    }
  });
}

}  // namespace linattn
