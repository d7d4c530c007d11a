#pragma once

#include <cstdint>

namespace linattn {

// The MLP's nonlinearities, elementwise on n floats. y may be x. NaN stays NaN.

// y = x Phi(x), Phi the normal distribution function ("exact" GELU, Hendrycks & Gimpel 2016, not
// its tanh form). |error| <= 2.5e-7 max(1, |x|).
void Gelu(const float* x, int64_t n, float* y);

// y = max(x, 0).
void Relu(const float* x, int64_t n, float* y);

}  // namespace linattn
