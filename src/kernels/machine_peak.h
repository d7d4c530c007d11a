#pragma once

namespace linattn {

// What the machine can do at best, measured with as many threads as given: what a kernel's speed is
// held against. Operations are counted as in a matrix product: a multiplication and an addition are
// two.
struct MachinePeak {
  int threads = 0;
  // By the widest instructions that the kernels use, with nothing to wait for.
  double float32_gflops = 0, bfloat16_gflops = 0, int8_gops = 0;
  // Reading what lies in each thread's L2, in the shared L3, and in neither; all threads together.
  double l2_gbps = 0, l3_gbps = 0, memory_gbps = 0;
};
MachinePeak MeasureMachinePeak(int threads, double seconds = 1);  // takes about that

// Only float32_gflops, with all OpenMP threads. About 0.2 s.
double MeasureFmaPeak();

}  // namespace linattn
