#pragma once

#include <cstdint>

namespace linattn {

// Adds the vector of place t to x [dim]: sin and cos of t / 10000^(2i/dim) in turn. Vaswani et al.
// 2017, "Attention is all you need", section 3.5. Works for every t.
void AddSinusoid(int64_t t, int64_t dim, float* x);

}  // namespace linattn
