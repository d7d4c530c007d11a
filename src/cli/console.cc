#include "cli/console.h"

#include <string.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"

namespace linattn::cli {

void InstallSignalHandlers() {
  InstallInterruptHandlers();
  std::signal(SIGPIPE, SIG_IGN);
}

void ThrowIfInterrupted() {
  if (InterruptSignal() != 0) throw Interrupted();
}

void Write(std::string_view text) { Write(AsBytes(text)); }

void Write(std::span<const uint8_t> bytes) {
  const bool written =  // fwrite wants a pointer even to nothing
      bytes.empty() || std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
  if (written && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) throw OutputClosed();
  throw Error("output", fmt::format("cannot write to standard output: {}", strerror(errno)),
              Fault::kInternal);
}

}  // namespace linattn::cli
