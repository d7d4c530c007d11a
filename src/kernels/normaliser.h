#pragma once

#include <cfloat>
#include <cmath>

namespace linattn {

// 1/den for the denominators of normalised mixers. One that is smaller than any normal float, which
// happens only with eps = 0, counts as 0, and 0/0 as 0: its reciprocal would overflow.
inline float InverseNormaliser(float den) { return std::abs(den) < FLT_MIN ? 0.0f : 1.0f / den; }
inline double InverseNormaliser(double den) { return std::abs(den) < FLT_MIN ? 0.0 : 1.0 / den; }

}  // namespace linattn
