#pragma once

#include <cstdint>

namespace linattn::bench {

// Resident memory of this process, as Linux counts it; 0 elsewhere.
int64_t ResidentBytes();
// The largest since ForgetPeakMemory() was last called, or the program started.
int64_t PeakMemoryBytes();
// Also gives what is free back to the system, so that it is not counted again.
void ForgetPeakMemory();

}  // namespace linattn::bench
