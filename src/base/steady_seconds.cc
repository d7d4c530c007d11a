#include "base/steady_seconds.h"

#include <chrono>

namespace linattn {

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace linattn
