// The pieces of delta-inl.h on every SIMD target, against plain double loops.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/simd_testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/delta-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

void Solve(int64_t n, int64_t V, const float* B, const float* beta, float* E, float* U) {
  SolveWrites({n, V, n, B, beta}, E, U);
}
void SolveBack(int64_t n, int64_t V, const float* B, const float* beta, const float* E, float* dU,
               float* d_beta) {
  SolveWritesBack({n, V, n, B, beta}, E, dU, d_beta);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(Solve);
HWY_EXPORT(SolveBack);

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

Floats Normal(int64_t n, unsigned seed, float size) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  Floats x(n);
  for (float& value : x) value = normal(random);
  return x;
}

void ExpectNear(const Floats& x, const Doubles& ref, const char* what) {
  double error = 0, size = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    ASSERT_TRUE(std::isfinite(x[i])) << what << " " << i;
    error = std::max(error, std::abs(x[i] - ref[i]));
    size = std::max(size, std::abs(ref[i]));
  }
  EXPECT_LE(error, 3e-6 * size) << what;
}

struct System {
  int64_t n, V;
  Floats B, beta, R, dU;  // B's diagonal and what is above are NaN: nobody may read them
  System(int64_t n, int64_t V)
      : n(n),
        V(V),
        B(Normal(n * n, 1, 0.3f)),
        beta(Normal(n, 2, 1)),
        R(Normal(n * V, 3, 1)),
        dU(Normal(n * V, 4, 1)) {
    for (int64_t i = 0; i < n; ++i) {
      beta[i] = 1 / (1 + std::exp(beta[i]));
      std::fill(B.begin() + i * n + i, B.begin() + (i + 1) * n, NAN);
    }
    if (n > 2) beta[1] = 0, beta[2] = 1;
  }

  Doubles E, U, dE, d_beta;
  void SolveInDoubles() {
    E.assign(R.begin(), R.end()), U.resize(n * V);
    dE.resize(n * V), d_beta.assign(n, 0);
    for (int64_t v = 0; v < V; ++v) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < i; ++j) E[i * V + v] -= B[i * n + j] * U[j * V + v];
        U[i * V + v] = beta[i] * E[i * V + v];
      }
      for (int64_t j = n - 1; j >= 0; --j) {
        double x = dU[j * V + v];
        for (int64_t i = j + 1; i < n; ++i) x -= B[i * n + j] * dE[i * V + v];
        d_beta[j] += x * E[j * V + v];
        dE[j * V + v] = beta[j] * x;
      }
    }
  }
};

TEST(DeltaTest, SolvesBothWays) {
  OnEveryTarget([&] {
    for (const auto& [n, V] : {std::pair{1, 1}, {2, 3}, {7, 5}, {16, 64}, {13, 100}, {16, 33}}) {
      SCOPED_TRACE(testing::Message() << "n=" << n << " V=" << V);
      System s(n, V);
      s.SolveInDoubles();
      Floats E = s.R, U(n * V, NAN), dE = s.dU, d_beta(n, NAN);
      HWY_DYNAMIC_DISPATCH(Solve)(n, V, s.B.data(), s.beta.data(), E.data(), U.data());
      ExpectNear(E, s.E, "E");
      ExpectNear(U, s.U, "U");
      HWY_DYNAMIC_DISPATCH(SolveBack)
      (n, V, s.B.data(), s.beta.data(), E.data(), dE.data(), d_beta.data());
      ExpectNear(dE, s.dE, "dE");
      ExpectNear(d_beta, s.d_beta, "d_beta");
    }
  });
}

}  // namespace
}  // namespace linattn
#endif  // HWY_ONCE
