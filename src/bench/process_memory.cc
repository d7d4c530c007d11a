#include "bench/process_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

namespace linattn::bench {
namespace {

// "VmHWM:     123 kB"
int64_t StatusBytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name)) return std::stoll(line.substr(name.size())) * 1024;
  return 0;
}

}  // namespace

int64_t ResidentBytes() { return StatusBytes("VmRSS:"); }

int64_t PeakMemoryBytes() { return StatusBytes("VmHWM:"); }

void ForgetPeakMemory() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}

}  // namespace linattn::bench
