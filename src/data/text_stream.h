#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace linattn {

// Bytes that come in pieces, as text that can be shown: a character is held back until it is whole,
// and what is not UTF-8 becomes U+FFFD, one for each longest piece that begins a character (the
// Unicode Standard, section 3.9, table 3-8). To go on with a text, push its last three bytes first
// and throw away what they show.
class Utf8Stream {
 public:
  // What can be shown now that `bytes` have come.
  std::string Push(std::string_view bytes);
  // What is left when no more come: "" or one U+FFFD.
  std::string Finish();

 private:
  std::string held_;  // the beginning of a character, at most three bytes
};

// Bytes that come in pieces, up to the first place where one of the stop strings is complete. What
// may yet become one is held back.
class StopStrings {
 public:
  // Throws Error if one of them is empty.
  explicit StopStrings(std::vector<std::string> stops);

  // What came in an earlier stream that this one goes on with: a stop string may begin in it, but
  // not end. It is not given out again.
  void Begin(std::string_view before);

  // What comes before any stop string for certain.
  std::string Push(std::string_view bytes);
  std::string Finish();  // what was held back, if no stop string came
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  size_t before_ = 0;  // bytes of held_, the first ones, that are Begin's
  bool stopped_ = false;
};

}  // namespace linattn
