#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace linattn {

// Shows how far a long job is: on a terminal one line that is redrawn (bar, rate, time left, the
// caller's text), elsewhere plain lines, one in two seconds, without escape codes, flushed. The
// first call of Update always shows. Writing to a closed pipe is not an error and raises no
// SIGPIPE: closed() tells, and from then on nothing is written. Not for use from several threads at
// once.
class Progress {
 public:
  enum class Style { kAuto, kBar, kLines, kQuiet };
  struct Options {
    Style style = Style::kAuto;  // kAuto: kBar if the stream is a terminal, else kLines
    std::string unit = "step";
    std::function<double()> now;  // seconds; null: the steady clock
    bool clock = false;           // units are seconds, a budget: "1:30/5:00", without a rate
  };

  Progress(int64_t total, std::FILE* stream, bool quiet = false);
  Progress(int64_t total, std::FILE* stream, Options options);
  ~Progress() { Finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of `total` units, of which a resumed job calls Start(done) first so that the rate is
  // this run's.
  void Start(int64_t done);
  void Update(int64_t done, std::string_view text = {});
  // A line of its own, whatever the time: evaluations, file names.
  void Note(std::string_view line);
  // Shows the last update if it was held back, and ends the bar's line. Called by the destructor.
  void Finish();
  bool closed() const { return closed_; }

 private:
  void Show(double now);
  void Write(const std::string& text);
  std::string Summary(double now) const;

  int64_t total_, start_ = 0, done_ = 0;
  std::FILE* stream_;
  Options options_;
  std::string text_;
  double started_ = 0, shown_ = 0;
  bool any_shown_ = false, pending_ = false, on_bar_ = false, closed_ = false;
};

}  // namespace linattn
