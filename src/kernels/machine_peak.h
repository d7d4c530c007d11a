#pragma once

namespace linattn {

// GFLOP/s of float32 multiply-adds (two operations each) on registers alone, over all OpenMP
// threads, on the widest vectors that the kernels use: what a kernel's speed is held against. Takes
// about 0.3 s.
double MeasureFmaPeak();

}  // namespace linattn
