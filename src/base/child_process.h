#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace linattn {

struct ChildResult {
  int status = 0;          // exit status, or 128 + the signal that ended it
  int64_t peak_bytes = 0;  // the largest resident memory that it had
  std::string output;      // of standard output, if captured
};

struct ChildOptions {
  bool capture = false;         // standard output, instead of sharing this program's
  int output = -1;              // a descriptor of this program for it, if not captured; -1: shared
  std::function<int()> signal;  // asked many times a second: a signal to pass on, or 0; may be null
};

// Runs `words[0]` (a path) with the others as its arguments and waits for it. The child is out of
// the terminal's reach, so that Ctrl-C reaches it through options.signal alone, and once; it ends
// when this program dies. Throws Error if words[0] is no program, or cannot be started.
ChildResult RunChild(const std::vector<std::string>& words, const ChildOptions& options = {});

// The program `name` beside this one, as linattn-train is beside linattn. Throws Error from
// `where` if there is none.
std::string SiblingProgram(const std::string& name, const std::string& where);

}  // namespace linattn
