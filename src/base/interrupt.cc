#include "base/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace linattn {
namespace {

volatile std::sig_atomic_t g_signal = 0;

void AskToStop(int signal) {
  g_signal = signal;
  std::signal(signal, SIG_DFL);
  constexpr char kLine[] = "\nlinattn: stopping at the next safe point (once more: at once)\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
}

}  // namespace

void InstallInterruptHandlers() {
  std::signal(SIGINT, AskToStop);
  std::signal(SIGTERM, AskToStop);
}

int InterruptSignal() { return g_signal; }

void SleepWhenWaiting(char** argv) {
  constexpr const char* kPolicy = "OMP_WAIT_POLICY";
  if (getenv(kPolicy) != nullptr || getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (setenv(kPolicy, "passive", 0) != 0) return;
  char path[4096] = {};  // not the link itself, or the process would be called "exe"
  if (readlink("/proc/self/exe", path, sizeof(path) - 1) <= 0) return;
  execv(path, argv);  // returns only if that is impossible: then go on as it is
}

}  // namespace linattn
