#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace linattn::cli {

// What ends the program without being an error.
struct Interrupted {};   // Ctrl-C or SIGTERM: exit status 128 + signal
struct OutputClosed {};  // the reader of standard output went away: exit status 0

// InstallInterruptHandlers (base/interrupt.h), and writing to a closed pipe becomes an error instead
// of a signal.
void InstallSignalHandlers();
void ThrowIfInterrupted();

// Writes to standard output and flushes. Throws OutputClosed, or Error if the disk is full.
void Write(std::string_view text);
void Write(std::span<const uint8_t> bytes);

template <class... Args>
void Print(fmt::format_string<Args...> format, Args&&... args) {
  Write(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace linattn::cli
