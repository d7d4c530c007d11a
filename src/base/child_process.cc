#include "base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>

#include "base/error.h"

namespace linattn {
namespace {

constexpr int kWaitMs = 20;  // between two looks at the child

// In the child, between fork and exec: nothing that allocates.
[[noreturn]] void Become(char* const* argv, int output, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  if (output >= 0) dup2(output, STDOUT_FILENO);
  execv(argv[0], argv);
  _exit(127);
}

pid_t Start(const std::vector<std::string>& words, int output) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) Become(argv.data(), output, parent);
  if (child < 0)
    throw Error("process", fmt::format("cannot start {}: {}", words[0], strerror(errno)),
                Fault::kInternal);
  return child;
}

// Both ends of a pipe, closed at the end.
struct Pipe {
  std::array<int, 2> ends{-1, -1};
  explicit Pipe(bool open) {
    if (open && pipe2(ends.data(), O_CLOEXEC) != 0)
      throw Error("process", fmt::format("cannot make a pipe: {}", strerror(errno)),
                  Fault::kInternal);
  }
  ~Pipe() { CloseBoth(); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void Close(int end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
  void CloseBoth() { Close(0), Close(1); }

  // Waits at most `milliseconds` for output and adds it to `text`; false if there was none.
  bool Read(int milliseconds, std::string& text) {
    if (ends[0] < 0) {
      poll(nullptr, 0, milliseconds);
      return false;
    }
    pollfd ready{ends[0], POLLIN, 0};
    if (poll(&ready, 1, milliseconds) <= 0) return false;
    char buffer[4096];
    const ssize_t n = read(ends[0], buffer, sizeof(buffer));
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    if (n == 0) Close(0);
    return n > 0;
  }
};

}  // namespace

ChildResult RunChild(const std::vector<std::string>& words, const ChildOptions& options) {
  Check(!words.empty() && access(words[0].c_str(), X_OK) == 0, "process",
        "the program must be an executable file, but is '{}'", words.empty() ? "" : words[0]);
  Pipe pipe(options.capture);
  const pid_t child = Start(words, options.capture ? pipe.ends[1] : options.output);
  pipe.Close(1);
  ChildResult result;
  int status = 0;
  rusage usage{};
  for (int told = 0; wait4(child, &status, WNOHANG, &usage) == 0;) {
    if (options.signal && told == 0 && (told = options.signal()) != 0) kill(child, told);
    pipe.Read(kWaitMs, result.output);
  }
  while (pipe.Read(0, result.output)) {
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
  return result;
}

std::string SiblingProgram(const std::string& name, const std::string& where) {
  const auto own = std::filesystem::read_symlink("/proc/self/exe");
  const auto sibling = own.parent_path() / name;
  Check(std::filesystem::exists(sibling), where, "'{}' must be beside {}, but is not", name,
        own.string());
  return sibling.string();
}

}  // namespace linattn
