#pragma once

namespace linattn {

// Seconds since some moment, by a clock that nobody sets.
double SteadySeconds();

}  // namespace linattn
