#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/file.h"

// Programs as their users run them.
namespace linattn::program_testing {

// Starts `program`, what it prints going into `log` (mode "w": anew; "a": behind what is there),
// errors too. Returns its process.
inline pid_t Start(const char* program, const std::vector<std::string>& words,
                   const std::string& log, const char* mode) {
  const pid_t child = fork();
  if (child != 0) return child;
  if (freopen(log.c_str(), mode, stdout) == nullptr || dup2(1, 2) < 0) _exit(127);
  std::vector<char*> argv = {const_cast<char*>(program)};
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv(program, argv.data());
  _exit(127);
}

struct Result {
  int status = -1;  // or 128 + the signal that ended it
  std::string out, error;
};

// Runs a shell command without input; what it prints goes through files in `directory`.
inline Result Shell(const std::string& command, const std::string& directory) {
  const std::string out = directory + "/stdout", error = directory + "/stderr";
  const int raw =
      std::system(("{ " + command + "; } >" + out + " 2>" + error + " </dev/null").c_str());
  return {WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw),
          std::string(AsText(ReadFile(out))), std::string(AsText(ReadFile(error)))};
}

// Its exit status, or minus the signal that ended it.
inline int Wait(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace linattn::program_testing
