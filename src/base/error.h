#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace linattn {

// Whose fault an error is: the caller's (bad input; exit status 2) or ours and the machine's (exit status 1).
enum class Fault { kCaller, kInternal };

// The one exception type that the libraries throw. what() is "[where] what must hold, but got what".
class Error : public std::runtime_error {
 public:
  Error(std::string_view where, std::string_view message, Fault fault = Fault::kCaller)
      : std::runtime_error(fmt::format("[{}] {}", where, message)), fault_(fault) {}
  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

// Throws Error(where, formatted message).
template <class... Args>
[[noreturn]] void Fail(std::string_view where, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(where, fmt::format(format, std::forward<Args>(args)...));
}

// Fail unless `condition`; the message's arguments are formatted only on failure.
template <class... Args>
void Check(bool condition, std::string_view where, fmt::format_string<Args...> format,
           Args&&... args) {
  if (!condition) [[unlikely]]
    Fail(where, format, std::forward<Args>(args)...);
}

}  // namespace linattn
