#include "kernels/adam.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/simd_testing.h"

namespace linattn {
namespace {

template <class T>
struct Tensor {
  std::vector<T> x, gradient, m, v;

  explicit Tensor(int64_t size) : x(size), gradient(size), m(size), v(size) {
    for (int64_t i = 0; i < size; ++i) {
      x[i] = std::sin(T(i)), gradient[i] = std::cos(T(3 * i)) * T(0.1);
      m[i] = T(0.01) * std::sin(T(7 * i)), v[i] = T(1e-4) * (1 + std::cos(T(i)));
    }
  }
  AdamTensor View() {
    const auto view = [](std::vector<T>& values) {
      return MakeArray(values.data(), DTypeOf<T>(), {static_cast<int64_t>(values.size())});
    };
    return {view(x), view(gradient), view(m), view(v)};
  }
};

AdamUpdate SomeUpdate(bool adaptive) {
  return {.beta1 = 0.9,
          .beta2 = 0.99,
          .eps = 1e-8,
          .gradient_scale = 0.5,
          .coupled_decay = 0.1,
          .keep = 0.999,
          .rate = 1e-2,
          .v_scale = 3,
          .adaptive = adaptive};
}

// The header's formulas in float64, for one number.
struct Plain {
  double x, m, v;
};
Plain Expected(const AdamUpdate& u, double x, double gradient, double m, double v) {
  const double g = u.gradient_scale * gradient + u.coupled_decay * x;
  m = u.beta1 * m + (1 - u.beta1) * g;
  v = u.beta2 * v + (1 - u.beta2) * g * g;
  const double divisor = u.adaptive ? u.v_scale * std::sqrt(v) + u.eps : 1;
  return {u.keep * x - u.rate * m / divisor, m, v};
}

template <class T>
void ExpectFollows(int64_t size, bool adaptive, double bound) {
  Tensor<T> was(size), is(size);
  const AdamUpdate u = SomeUpdate(adaptive);
  const std::vector<AdamTensor> tensors{is.View()};
  UpdateTensors(tensors, u);
  for (int64_t i = 0; i < size; ++i) {
    const Plain plain = Expected(u, was.x[i], was.gradient[i], was.m[i], was.v[i]);
    ASSERT_NEAR(is.x[i], plain.x, bound) << i << " of " << size;
    ASSERT_NEAR(is.m[i], plain.m, bound) << i << " of " << size;
    ASSERT_NEAR(is.v[i], plain.v, bound) << i << " of " << size;
  }
}

TEST(Adam, FollowsItsFormulas) {
  OnEveryTarget([] {
    for (const int64_t size : {0, 1, 15, 16, 17, 8192, 8193, 20000})
      for (const bool adaptive : {false, true}) {
        ExpectFollows<float>(size, adaptive, 3e-7);  // a few roundings of numbers below 1.1
        ExpectFollows<double>(size, adaptive, 1e-15);
      }
  });
}

TEST(Adam, SameForAnyThreadCount) {
  std::vector<float> first;
  double norm = 0;
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    Tensor<float> a(30000), b(5);
    const std::vector<AdamTensor> tensors{a.View(), b.View()};
    UpdateTensors(tensors, SomeUpdate(true));
    const std::vector<Array> arrays{tensors[0].m, tensors[1].m};
    const double squares = SumOfSquares(arrays);
    if (threads == 1) first = a.x, norm = squares;
    EXPECT_EQ(a.x, first);
    EXPECT_EQ(squares, norm);
  }
  omp_set_num_threads(omp_get_num_procs());
}

TEST(SumOfSquares, IsExactEnoughAndSeesNaN) {
  OnEveryTarget([] {
    for (const int64_t size : {0, 1, 63, 64, 65, 8200, 20000}) {
      Tensor<float> a(size);
      double expected = 0;
      for (const float x : a.x) expected += static_cast<double>(x) * x;
      const std::vector<Array> arrays{a.View().x};
      EXPECT_NEAR(SumOfSquares(arrays), expected, 1e-6 * expected + 1e-30) << size;
      if (size == 0) continue;
      a.x[size - 1] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(SumOfSquares(arrays)));
      a.x[size - 1] = std::numeric_limits<float>::infinity();
      EXPECT_FALSE(std::isfinite(SumOfSquares(arrays)));
    }
  });
}

TEST(Adam, RefusesTensorsThatDiffer) {
  Tensor<float> a(4), b(5);
  AdamTensor mixed = a.View();
  mixed.gradient = b.View().gradient;
  const std::vector<AdamTensor> tensors{mixed};
  EXPECT_THROW(UpdateTensors(tensors, {}), Error);
}

}  // namespace
}  // namespace linattn
