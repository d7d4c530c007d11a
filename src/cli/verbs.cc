#include "cli/verbs.h"

#include <omp.h>

namespace linattn::cli {

void AddCommon(CLI::App& app, Common& common) {
  app.add_option("--threads", common.threads, "threads to use (default: all cores)")
      ->check(CLI::Range(1, 1024))
      ->each([](const std::string& text) { omp_set_num_threads(std::stoi(text)); });
  app.add_flag("--quiet,-q", common.quiet, "no progress and no remarks");
}

}  // namespace linattn::cli
