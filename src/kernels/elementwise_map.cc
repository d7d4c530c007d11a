#include <cmath>

#include "kernels/feature_map_table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise_map.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/vector-inl.h"

#ifndef LINATTN_KERNELS_ELEMENTWISE_MAP_KIND_
#define LINATTN_KERNELS_ELEMENTWISE_MAP_KIND_
namespace linattn {
enum class MapKind { kElu1, kRelu, kSquaredRelu, kIdentity };
}
#endif

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// Written so that NaN stays NaN: Min and Max would drop it.
struct Elu1 {
  static HWY_INLINE FloatVector Value(FloatVector x) {
    const FloatTag d;
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Add(x, hn::Set(d, 1.0f)), ExpOrNaN(x));
  }
  static HWY_INLINE FloatVector Slope(FloatVector x, FloatVector y) {
    const FloatTag d;
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Set(d, 1.0f), y);
  }
};

struct Relu {
  static HWY_INLINE FloatVector Value(FloatVector x) { return Positive(x); }
  static HWY_INLINE FloatVector Slope(FloatVector x, FloatVector) {
    const FloatTag d;
    return hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), hn::Set(d, 1.0f));
  }
};

struct SquaredRelu {
  static HWY_INLINE FloatVector Value(FloatVector x) {
    const auto positive = Positive(x);
    return hn::Mul(positive, positive);
  }
  static HWY_INLINE FloatVector Slope(FloatVector x, FloatVector) {
    const auto positive = Positive(x);
    return hn::Add(positive, positive);
  }
};

struct Identity {
  static HWY_INLINE FloatVector Value(FloatVector x) { return x; }
  static HWY_INLINE FloatVector Slope(FloatVector, FloatVector) {
    return hn::Set(FloatTag(), 1.0f);
  }
};

template <class Map>
HWY_INLINE void ForwardWith(const float* x, int64_t n, float* y) {
  ForEachVector(
      n, [=](auto load, auto store, int64_t i) HWY_ATTR { store(Map::Value(load(x + i)), y + i); });
}

template <class Map>
HWY_INLINE void BackwardWith(const float* x, const float* y, const float* d_y, int64_t n,
                             float* d_x) {
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    store(hn::Mul(load(d_y + i), Map::Slope(load(x + i), load(y + i))), d_x + i);
  });
}

void MapForward(MapKind kind, const float* x, int64_t n, float* y) {
  switch (kind) {
    case MapKind::kElu1:
      return ForwardWith<Elu1>(x, n, y);
    case MapKind::kRelu:
      return ForwardWith<Relu>(x, n, y);
    case MapKind::kSquaredRelu:
      return ForwardWith<SquaredRelu>(x, n, y);
    case MapKind::kIdentity:
      return ForwardWith<Identity>(x, n, y);
  }
}

void MapBackward(MapKind kind, const float* x, const float* y, const float* d_y, int64_t n,
                 float* d_x) {
  switch (kind) {
    case MapKind::kElu1:
      return BackwardWith<Elu1>(x, y, d_y, n, d_x);
    case MapKind::kRelu:
      return BackwardWith<Relu>(x, y, d_y, n, d_x);
    case MapKind::kSquaredRelu:
      return BackwardWith<SquaredRelu>(x, y, d_y, n, d_x);
    case MapKind::kIdentity:
      return BackwardWith<Identity>(x, y, d_y, n, d_x);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(MapForward);
HWY_EXPORT(MapBackward);

// A map of the registry: ElementwiseMap's definition in double, with a SIMD path in float.
class NamedMap final : public ElementwiseMap {
 public:
  NamedMap(MapKind kind, std::string_view name, Scalar f, Scalar derivative)
      : ElementwiseMap(name, f, derivative), kind_(kind) {}
  using ElementwiseMap::Backward;
  using ElementwiseMap::Forward;
  void Forward(const float* x, int64_t rows, int64_t K, float* y) const override {
    HWY_DYNAMIC_DISPATCH(MapForward)(kind_, x, rows * K, y);
  }
  void Backward(const float* x, const float* y, const float* d_y, int64_t rows, int64_t K,
                float* d_x) const override {
    HWY_DYNAMIC_DISPATCH(MapBackward)(kind_, x, y, d_y, rows * K, d_x);
  }

 private:
  MapKind kind_;
};

const NamedMap kMaps[] = {
    {MapKind::kElu1, "elu1", [](double x) { return x > 0 ? x + 1 : std::exp(x); },
     [](double x) { return x > 0 ? 1 : std::exp(x); }},
    {MapKind::kRelu, "relu", [](double x) { return x < 0 ? 0 : x; },
     [](double x) { return x > 0 ? 1.0 : 0.0; }},
    {MapKind::kSquaredRelu, "squared_relu", [](double x) { return x < 0 ? 0 : x * x; },
     [](double x) { return x > 0 ? 2 * x : 0; }},
    {MapKind::kIdentity, "identity", [](double x) { return x; }, [](double) { return 1.0; }},
};

}  // namespace

std::span<const FeatureMap* const> ElementwiseMaps() {
  static const FeatureMap* const maps[] = {&kMaps[0], &kMaps[1], &kMaps[2], &kMaps[3]};
  return maps;
}

void ElementwiseMap::Forward(const float* x, int64_t rows, int64_t K, float* y) const {
  for (int64_t i = 0; i < rows * K; ++i) y[i] = static_cast<float>(f_(x[i]));
}

void ElementwiseMap::Forward(const double* x, int64_t rows, int64_t K, double* y) const {
  for (int64_t i = 0; i < rows * K; ++i) y[i] = f_(x[i]);
}

void ElementwiseMap::Backward(const float* x, const float*, const float* d_y, int64_t rows,
                              int64_t K, float* d_x) const {
  for (int64_t i = 0; i < rows * K; ++i) d_x[i] = static_cast<float>(d_y[i] * derivative_(x[i]));
}

void ElementwiseMap::Backward(const double* x, const double*, const double* d_y, int64_t rows,
                              int64_t K, double* d_x) const {
  for (int64_t i = 0; i < rows * K; ++i) d_x[i] = d_y[i] * derivative_(x[i]);
}

}  // namespace linattn
#endif  // HWY_ONCE
