#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/feature_map.h"

namespace linattn::feature_map_testing {

using Row = std::vector<double>;

// phi of one row, by its definition.
inline Row Map(const FeatureMap& map, const Row& x) {
  const auto K = static_cast<int64_t>(x.size());
  Row y(static_cast<size_t>(map.Features(K)));
  map.Forward(x.data(), 1, K, y.data());
  return y;
}

inline double Dot(const Row& x, const Row& y) {
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

}  // namespace linattn::feature_map_testing
