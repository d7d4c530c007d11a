// The pieces of decay-inl.h on every SIMD target, against plain double loops.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/simd_testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decay_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/decay-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

void Fill(int64_t n, int64_t D, float* a, float* enter, float* leave, float* pass) {
  FillDecays({n, D, a, enter, leave, pass});
}
void Product(int64_t n, int64_t F, const float* x, const float* y, const float* a, float* A) {
  DecayedProduct({x, n, F, F}, y, a, n, A);
}
void ProductGradient(int64_t n, int64_t F, const float* dA, const float* x, const float* y,
                     const float* a, float* dx, float* dy, float* dg) {
  AddDecayedProductGradient({dA, x, y, a, dx, dy, dg, n, F, n});
}
void Triangle(int64_t n, const float* a, float* M) { FillDecayTriangle(n, a, n, M); }
void Crossings(int64_t n, const float* P, float* dg) { AddCrossings(n, n, P, dg); }
void Ends(int64_t n, int64_t D, const float* d_enter, const float* d_leave, const float* d_pass,
          float* dg) {
  AddGatesOfEnds(n, D, d_enter, d_leave, d_pass, dg);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(Fill);
HWY_EXPORT(Product);
HWY_EXPORT(ProductGradient);
HWY_EXPORT(Triangle);
HWY_EXPORT(Crossings);
HWY_EXPORT(Ends);

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Floats Normal(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats x(n);
  for (float& value : x) value = normal(random);
  return x;
}

// Every kind of gate: none, mild, strong, -20, a reset.
Floats Gates(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform;
  Floats g(n);
  for (float& value : g) {
    const float kind = uniform(random);
    value = kind < 0.1f   ? 0.0f
            : kind < 0.5f ? -uniform(random) / 16
            : kind < 0.8f ? -8 * uniform(random)
            : kind < 0.9f ? -20.0f
                          : -kInfinity;
  }
  return g;
}

// exp of the gates of tokens (after, upto], of channel f.
double Left(const Floats& g, int64_t D, int64_t f, int64_t after, int64_t upto) {
  double sum = 0;
  for (int64_t t = after + 1; t <= upto; ++t) sum += g[t * D + f];
  return std::exp(sum);
}

// size: the least to measure errors against.
void ExpectNear(const Floats& x, const Doubles& ref, double bound, const char* what,
                double size = 0) {
  double error = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    ASSERT_TRUE(std::isfinite(x[i])) << what << " " << i;
    error = std::max(error, std::abs(x[i] - ref[i]));
    size = std::max(size, std::abs(ref[i]));
    ASSERT_TRUE(ref[i] != 0 || x[i] == 0) << what << " " << i;
  }
  EXPECT_LE(error, bound * size) << what;
}

Floats Factors(Floats g) {
  for (float& x : g) x = std::exp(x);
  return g;
}

void OnEveryTargetAndShape(const std::function<void(int64_t n, int64_t F)>& body) {
  OnEveryTarget([&] {
    for (const auto& [n, F] :
         {std::pair{1, 1}, {2, 3}, {7, 5}, {16, 64}, {13, 100}, {16, 33}, {64, 17}}) {
      SCOPED_TRACE(testing::Message() << "n=" << n << " F=" << F);
      body(n, F);
    }
  });
}

TEST(DecayTest, FillDecaysGivesProductsOfFactors) {
  OnEveryTargetAndShape([](int64_t n, int64_t D) {
    const Floats g = Gates(n * D, 1);
    Floats a = g, enter(n * D), leave(n * D), pass(D);
    HWY_DYNAMIC_DISPATCH(Fill)(n, D, a.data(), enter.data(), leave.data(), pass.data());
    Doubles own, before, after, across;
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t f = 0; f < D; ++f) {
        own.push_back(Left(g, D, f, t - 1, t));
        before.push_back(Left(g, D, f, -1, t));
        after.push_back(Left(g, D, f, t, n - 1));
      }
    }
    for (int64_t f = 0; f < D; ++f) across.push_back(Left(g, D, f, -1, n - 1));
    ExpectNear(a, own, 2e-7, "a");
    ExpectNear(leave, after, 2e-6, "leave", 1);
    for (auto* ref : {&before, &across})  // below the smallest float
      for (double& x : *ref) x = x < 1e-44 ? 0 : x;
    for (auto* x : {&enter, &pass})
      for (float& value : *x) value = value < 1e-44f ? 0 : value;
    ExpectNear(enter, before, 2e-6, "enter", 1);
    ExpectNear(pass, across, 2e-7, "pass", 1);
  });
}

TEST(DecayTest, TriangleAndProductAreSumsOverChannels) {
  OnEveryTargetAndShape([](int64_t n, int64_t F) {
    const Floats g = Gates(n * F, 2), x = Normal(n * F, 3), y = Normal(n * F, 4);
    Floats A(n * n, NAN), M(n * n, NAN);
    HWY_DYNAMIC_DISPATCH(Product)(n, F, x.data(), y.data(), Factors(g).data(), A.data());
    HWY_DYNAMIC_DISPATCH(Triangle)(n, Factors(g).data(), M.data());
    Doubles product(n * n), triangle(n * n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        triangle[i * n + j] = Left(g, 1, 0, j, i);
        for (int64_t f = 0; f < F; ++f)
          product[i * n + j] += double{x[i * F + f]} * y[j * F + f] * Left(g, F, f, j, i);
      }
    }
    ExpectNear(A, product, 1e-6, "A");
    for (double& value : triangle) value = value < 1e-44 ? 0 : value;
    for (float& value : M) value = value < 1e-44f ? 0 : value;
    ExpectNear(M, triangle, 2e-6, "M");
  });
}

TEST(DecayTest, ProductGradientIsTheSumOverPairs) {
  OnEveryTargetAndShape([](int64_t n, int64_t F) {
    const Floats g = Gates(n * F, 5), x = Normal(n * F, 6), y = Normal(n * F, 7);
    Floats dA = Normal(n * n, 8), dx(n * F), dy(n * F), dg(n * F);
    for (int64_t i = 0; i < n; ++i)
      std::fill(dA.begin() + i * n + i + 1, dA.begin() + (i + 1) * n, 0.0f);
    HWY_DYNAMIC_DISPATCH(ProductGradient)
    (n, F, dA.data(), x.data(), y.data(), Factors(g).data(), dx.data(), dy.data(), dg.data());
    Doubles ref_x(n * F), ref_y(n * F), ref_g(n * F);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        for (int64_t f = 0; f < F; ++f) {
          const double d = dA[i * n + j] * Left(g, F, f, j, i);
          ref_x[i * F + f] += d * y[j * F + f];
          ref_y[j * F + f] += d * x[i * F + f];
          for (int64_t t = j + 1; t <= i; ++t) ref_g[t * F + f] += d * x[i * F + f] * y[j * F + f];
        }
      }
    }
    ExpectNear(dx, ref_x, 2e-6, "dx");
    ExpectNear(dy, ref_y, 2e-6, "dy");
    ExpectNear(dg, ref_g, 2e-6, "dg");
  });
}

TEST(DecayTest, GatesGetWhatTheyLieBetween) {
  OnEveryTargetAndShape([](int64_t n, int64_t D) {
    const Floats P = Normal(n * n, 9), enter = Normal(n * D, 10), leave = Normal(n * D, 11);
    const Floats pass = Normal(D, 12);
    Floats crossings(n), ends(n * D);
    HWY_DYNAMIC_DISPATCH(Crossings)(n, P.data(), crossings.data());
    HWY_DYNAMIC_DISPATCH(Ends)(n, D, enter.data(), leave.data(), pass.data(), ends.data());
    Doubles ref(n), ref_ends(n * D);
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t i = t; i < n; ++i)
        for (int64_t j = 0; j < t; ++j) ref[t] += P[i * n + j];
      for (int64_t f = 0; f < D; ++f) {
        double& sum = ref_ends[t * D + f] = pass[f];
        for (int64_t i = t; i < n; ++i) sum += enter[i * D + f];
        for (int64_t j = 0; j < t; ++j) sum += leave[j * D + f];
      }
    }
    ExpectNear(crossings, ref, 2e-6, "crossings");
    ExpectNear(ends, ref_ends, 2e-6, "ends");
  });
}

}  // namespace
}  // namespace linattn
#endif  // HWY_ONCE
