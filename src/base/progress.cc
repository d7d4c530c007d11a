#include "base/progress.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>

#include "base/steady_seconds.h"

namespace linattn {
namespace {

// Keeps a write to a closed pipe from killing the process: holds SIGPIPE back in this thread, and
// swallows the one that the write raised.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec none{};
    if (!was_pending_)
      while (sigtimedwait(&pipe_, nullptr, &none) < 0 && errno == EINTR) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

std::string Duration(double seconds) {
  const auto s = static_cast<int64_t>(std::min(seconds, 3.6e8) + 0.5);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

size_t TerminalWidth(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

Progress::Progress(int64_t total, std::FILE* stream, bool quiet)
    : Progress(total, stream, Options{quiet ? Style::kQuiet : Style::kAuto, "step", nullptr}) {}

Progress::Progress(int64_t total, std::FILE* stream, Options options)
    : total_(total), stream_(stream), options_(std::move(options)) {
  if (!options_.now) options_.now = SteadySeconds;
  if (options_.style == Style::kAuto)
    options_.style = isatty(fileno(stream)) ? Style::kBar : Style::kLines;
  started_ = options_.now();
}

void Progress::Start(int64_t done) {
  start_ = done_ = done;
  started_ = options_.now();
}

void Progress::Update(int64_t done, std::string_view text) {
  done_ = done;
  text_ = text;
  pending_ = true;
  const double now = options_.now();
  const double interval = options_.style == Style::kBar ? 0.1 : 2.0;  // seconds
  if (!any_shown_ || now - shown_ >= interval) Show(now);
}

void Progress::Note(std::string_view line) {
  if (options_.style == Style::kQuiet) return;
  Write(fmt::format("{}{}\n", std::exchange(on_bar_, false) ? "\r\x1b[K" : "", line));
  if (options_.style == Style::kBar && any_shown_) Show(options_.now());
}

void Progress::Finish() {
  if (pending_) Show(options_.now());
  if (std::exchange(on_bar_, false)) Write("\n");
}

std::string Progress::Summary(double now) const {
  const double elapsed = now - started_;
  std::string line = options_.clock ? fmt::format("{}/{}", Duration(static_cast<double>(done_)),
                                                  Duration(static_cast<double>(total_)))
                                    : fmt::format("{} {}/{}", options_.unit, done_, total_);
  if (done_ > start_ && elapsed > 0 && !options_.clock) {
    const double rate = static_cast<double>(done_ - start_) / elapsed;
    line += fmt::format("  {:.3g}/s", rate);
    if (done_ < total_)
      line += fmt::format("  {} left", Duration(static_cast<double>(total_ - done_) / rate));
    else
      line += fmt::format("  in {}", Duration(elapsed));
  }
  if (!text_.empty()) line += "  " + text_;
  return line;
}

void Progress::Show(double now) {
  shown_ = now;
  any_shown_ = true;
  pending_ = false;
  if (options_.style == Style::kQuiet) return;
  const std::string summary = Summary(now);
  if (options_.style == Style::kLines) return Write(summary + "\n");
  constexpr int64_t kCells = 20;
  const int64_t part = total_ > 0 ? std::clamp<int64_t>(done_ * kCells / total_, 0, kCells) : 0;
  std::string line =
      fmt::format("[{}{}] {}", std::string(part, '#'), std::string(kCells - part, '.'), summary);
  line.resize(
      std::min(line.size(), TerminalWidth(stream_) - 1));  // a wrapped line cannot be redrawn
  on_bar_ = true;
  Write("\r" + line + "\x1b[K");
}

void Progress::Write(const std::string& text) {
  if (closed_) return;
  const WithoutSigpipe guard;
  if (std::fwrite(text.data(), 1, text.size(), stream_) != text.size() ||
      std::fflush(stream_) != 0) {
    closed_ = true;
    clearerr(stream_);
  }
}

}  // namespace linattn
