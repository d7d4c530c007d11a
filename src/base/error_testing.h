#pragma once

#include <string>

#include "base/error.h"

namespace linattn {

// For tests: what run() refuses with, or "no error".
template <class Run>
std::string MessageOf(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace linattn
