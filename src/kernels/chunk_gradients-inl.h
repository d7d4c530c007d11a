// What every chunkwise backward reads and writes at its ends. Included once a SIMD target, inside
// foreach_target's loop.
#if defined(LINATTN_KERNELS_CHUNK_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_CHUNK_GRADIENTS_INL_H_
#undef LINATTN_KERNELS_CHUNK_GRADIENTS_INL_H_
#else
#define LINATTN_KERNELS_CHUNK_GRADIENTS_INL_H_
#endif

#include "kernels/chunk_forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// L [G,F,V] and l [G,F]: d_ST and d_zT, or zero.
inline void LoadStateGradients(const HeadTask& task, const MixerGradients& grad,
                               const BackwardScratch& w) {
  const ChunkShape& s = task.call.shape;
  for (int64_t g = 0; g < s.G; ++g) {
    const int64_t n = task.sequence, head = task.value_head(g);
    float *L = w.L + g * s.F * s.V, *l = w.l + g * s.F;
    std::fill_n(L, s.F * s.V, 0.0f);
    std::fill_n(l, s.F, 0.0f);
    for (int64_t f = 0; f < s.F && grad.d_ST.present(); ++f)
      std::copy_n(grad.d_ST.At<float>(n, head, f), s.V, L + f * s.V);
    if (grad.d_zT.present()) std::copy_n(grad.d_zT.At<float>(n, head), s.F, l);
  }
}

// dN [n,V] and dd [n] of value head g (eq. 9).
inline void LoadOutputGradients(const HeadTask& task, const MixerGradients& grad,
                                const BackwardScratch& w, int64_t begin, int64_t n, int64_t g) {
  const MixerOutputs& out = task.call.out;
  const ChunkShape& s = task.call.shape;
  std::fill_n(w.dd, n, 0.0f);
  if (!grad.d_o.present()) {
    std::fill_n(w.dN, n * s.V, 0.0f);
    return;
  }
  LoadRows(task.O(grad.d_o, g), begin, n, w.dN);
  if (s.normalised) {
    LoadRows(task.O(out.o, g), begin, n, w.O);
    for (int64_t i = 0; i < n; ++i) {
      const float den =
          *out.norm.At<float>(task.queries.row, task.queries[begin + i], task.value_head(g));
      float* dN = w.dN + i * s.V;
      Scale(InverseNormaliser(den), dN, s.V);
      w.dd[i] = -Dot(dN, w.O + i * s.V, s.V);
    }
  }
}

// The gradient of features y = phi(x), and where that of x goes.
struct FeatureGradients {
  const FeatureMap& phi;
  const float *y, *dy;  // [n,F]
  TokenRows to;
};

// raw as LoadFeatures left it.
inline void StoreFeatureGradients(const FeatureGradients& of, const ChunkShape& s,
                                  const BackwardScratch& w, int64_t begin, int64_t n) {
  if (IsIdentity(of.phi)) return StoreRows(of.to, begin, n, of.dy);
  of.phi.Backward(w.raw, of.y, of.dy, n, s.K, w.dX);
  StoreRows(of.to, begin, n, w.dX);
}

// From dK, with raw and K as LoadKeys left them.
inline void StoreKeyGradients(const HeadTask& task, const MixerGradients& grad, const float* dK,
                              const BackwardScratch& w, int64_t begin, int64_t n) {
  StoreFeatureGradients({task.call.key_phi, w.K, dK, task.K(grad.d_k)}, task.call.shape, w, begin,
                        n);
}

// From dF, the gradient of scale phi(q); loads the queries once more, without their scale.
inline void StoreQueryGradients(const HeadTask& task, const MixerGradients& grad,
                                const BackwardScratch& w, int64_t begin, int64_t n) {
  const ChunkCall& call = task.call;
  if (call.scale != 1) Scale(call.scale, w.dF, n * call.shape.F);
  if (!IsIdentity(call.phi)) LoadFeatures(call.phi, task.Q(call.in.q), begin, n, w.raw, w.Q);
  StoreFeatureGradients({call.phi, w.Q, w.dF, task.Q(grad.d_q)}, call.shape, w, begin, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
