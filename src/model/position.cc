#include "model/position.h"

#include <cmath>

namespace linattn {

void AddSinusoid(int64_t t, int64_t dim, float* x) {
  const double step = std::log(10000.0) / static_cast<double>(dim);
  for (int64_t i = 0; i < dim; i += 2) {
    const double angle = static_cast<double>(t) * std::exp(-step * static_cast<double>(i));
    x[i] += static_cast<float>(std::sin(angle));
    if (i + 1 < dim) x[i + 1] += static_cast<float>(std::cos(angle));
  }
}

}  // namespace linattn
