#include "cli/console.h"

#include <string.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"

namespace linattn::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void AskToStop(int signal) {
  g_interrupted = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void InstallSignalHandlers() {
  std::signal(SIGINT, AskToStop);
  std::signal(SIGTERM, AskToStop);
  std::signal(SIGPIPE, SIG_IGN);
}

void ThrowIfInterrupted() {
  if (g_interrupted) throw Interrupted();
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
