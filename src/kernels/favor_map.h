#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/feature_map.h"

// FAVOR+: positive random features, whose inner products are unbiased estimates of exp(q.k K^-1/2)
// (Choromanski et al. 2021, "Rethinking Attention with Performers", lemma 1 and section 2.4).
//
//     y = x K^-1/4,   a_j = w_j . y,   phi(x)_j = M^-1/2 (exp(a_j - n - c) + 1e-4),   j < M
//
// with rows w_j of a random projection W [M,K] and, by role and form,
//
//     published  query   n = |y|^2/2   c = max_j a_j of the row
//                key     n = |y|^2/2   c given: the caller's max of a_j over all keys of a head
//     streaming  query   n = 0         c = max_j a_j of the row
//                key     n = |y|^2/2   c = 0, and exponents are cut at 60
//
// The published key's c is a maximum over tokens that a causal model has not seen yet, so it
// neither generates nor keeps the future out. The streaming form needs none. Its key features have
// mean 1 over the random w (whatever |y|), so 1e-4 is as small beside them as beside the published
// ones; and they cannot overflow: a_j - |y|^2/2 = |w_j|^2/2 - |w_j - y|^2/2 <= |w_j|^2/2, which
// for K <= 64 hardly ever passes 60, and where it does a key that reaches the cut lies almost on
// w_j. It costs no accuracy but there, where the feature stays at e^60 and has no gradient. (A
// constant shift c = max_j |w_j|^2/2 - 60 would bound exp too, but makes all ordinary features of
// K >= 128 smaller than any eps of the normaliser.) The streaming query drops n, which its
// normaliser divides out anyway; with it, features of long queries vanish beside 1e-4.
//
// Backward: the published c is a constant, as in the golden files; the streaming query's gradient
// is exact, through its maximum too.
namespace linattn {

enum class FavorRole { kQuery, kKey };

class FavorMap final : public FeatureMap {
 public:
  // The streaming form. Copies `projection` [M,K], row-major. Throws Error unless M, K >= 1.
  FavorMap(FavorRole role, std::span<const float> projection, int64_t K);
  // The published form; `shift` is c, for a key.
  static FavorMap Published(FavorRole role, std::span<const float> projection, int64_t K,
                            double shift = 0);

  std::string_view name() const override { return "favor"; }
  // M. Throws Error if rows of another length than the projection's are mapped.
  int64_t Features(int64_t K) const override;
  void Forward(const float* x, int64_t rows, int64_t K, float* y) const override;
  void Forward(const double* x, int64_t rows, int64_t K, double* y) const override;
  void Backward(const float* x, const float* y, const float* d_y, int64_t rows, int64_t K,
                float* d_x) const override;
  void Backward(const double* x, const double* y, const double* d_y, int64_t rows, int64_t K,
                double* d_x) const override;

  struct Form {
    bool subtract_norm, row_maximum;  // n = |y|^2/2, else 0; c = max_j a_j, else `shift`
    bool constant_maximum;            // the gradient does not pass through the row's maximum
    double shift;
  };

 private:
  FavorMap(const Form& form, std::span<const float> projection, int64_t K);
  Form form_;
  int64_t K_, M_;
  std::vector<float> W_, WT_;  // [M,K], [K,M], both times K^-1/4
  std::vector<double> W64_;    // [M,K], as given
};

// The largest a_j of rows x [rows,K]: the published key's shift, for one head.
double FavorShift(const double* x, int64_t rows, std::span<const float> projection, int64_t K);

// [M,K], row-major: blocks of K rows that are orthogonal to each other, each row as long as a
// vector of K standard normal numbers (section 2.4). A function of its arguments alone.
std::vector<float> OrthogonalProjection(int64_t M, int64_t K, uint64_t seed);

// Features that `performer` has unless told otherwise: the next multiple of 16 from K ln K on, the
// number that the paper's bound asks for (theorem 4).
int64_t DefaultFavorFeatures(int64_t K);

// "favor": the streaming query map of OrthogonalProjection(DefaultFavorFeatures(K), K, 0), for
// every K; OfKeys() is the key map of the same projection. Projections are drawn on their first use
// and kept.
const FeatureMap& DefaultFavorMap();

}  // namespace linattn
