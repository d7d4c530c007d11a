// The program golden_check itself: its verdicts and exit status.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/safetensors.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kGolden = LINATTN_TESTDATA "/golden/";
const std::string kCase = "linear_noncausal_t7_k5.safetensors";

struct Outcome {
  int status;
  std::string output;
};

Outcome GoldenCheck(const std::string& directory) {
  const std::string command = std::string(LINATTN_BIN) + "/golden_check '" + directory + "' 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  Outcome outcome{-1, ""};
  char block[4096];
  for (size_t n; (n = std::fread(block, 1, sizeof block, pipe)) > 0;)
    outcome.output.append(block, n);
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// The case with the op renamed, or one value of a tensor moved by `change` of its largest.
void WriteChanged(const std::string& path, const std::string& op, const std::string& moved,
                  double change) {
  const auto file = SafetensorsFile::Open(kGolden + kCase);
  std::map<std::string, std::vector<double>> values;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : file.tensors()) {
    auto& copy = values[name] = file.Doubles(name);
    if (name == moved) {
      const auto by_size = [](double a, double b) { return std::abs(a) < std::abs(b); };
      copy[0] += change * std::abs(*std::max_element(copy.begin(), copy.end(), by_size));
    }
    tensors.push_back(ToStore<double>(name, tensor.shape, copy));
  }
  auto metadata = file.metadata();
  if (!op.empty()) metadata["op"] = op;
  WriteSafetensors(path, tensors, metadata);
}

TEST(GoldenCheck, PassesOnItsOwnFiles) {
  const Outcome outcome = GoldenCheck(kGolden);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("passed   " + kCase + ": worst error "));
  EXPECT_THAT(outcome.output, HasSubstr("passed   linear_elu1.json"));
  const auto files = std::distance(fs::directory_iterator(kGolden), fs::directory_iterator());
  EXPECT_THAT(outcome.output, HasSubstr(fmt::format("{} passed, 0 skipped, 0 failed", files)));
}

// Every output and gradient is looked at: each, moved by more than the tolerance, fails.
TEST(GoldenCheck, FailsOnAnyWrongTensor) {
  for (const std::string name : {"o", "ht", "zt", "dq", "dk", "dv"}) {
    const TemporaryDirectory directory;
    WriteChanged(directory / kCase, "", name, 1e-8);
    const Outcome outcome = GoldenCheck(directory.path());
    EXPECT_EQ(outcome.status, 1) << name;
    EXPECT_THAT(outcome.output, HasSubstr("FAILED   " + kCase + ": worst error 1.00e-08 (float64 " +
                                          name + "), tolerance 1e-10"));
  }
  const TemporaryDirectory directory;
  WriteChanged(directory / kCase, "", "do", 1e-2);  // an input that no longer fits its gradients
  EXPECT_EQ(GoldenCheck(directory.path()).status, 1);
}

// Another key length: the case with its first 3 of 7 queries, for which o and dq stay what they
// were.
TEST(GoldenCheck, RunsCrossAttention) {
  const TemporaryDirectory directory;
  const auto file = SafetensorsFile::Open(kGolden + kCase);
  std::map<std::string, std::vector<double>> values;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name == "dk" || name == "dv") continue;
    auto& copy = values[name] = file.Doubles(name);
    auto shape = tensor.shape;
    if (name == "q" || name == "o" || name == "do" || name == "dq") {
      const int64_t row = shape[2] * shape[3];
      for (int64_t b = shape[0]; b-- > 0;)
        copy.erase(copy.begin() + (b * 7 + 3) * row, copy.begin() + (b + 1) * 7 * row);
      shape[1] = 3;
    }
    tensors.push_back(ToStore<double>(name, shape, copy));
  }
  WriteSafetensors(directory / "cross.safetensors", tensors, file.metadata());
  const Outcome outcome = GoldenCheck(directory.path());
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("passed   cross.safetensors"));
  EXPECT_THAT(outcome.output, HasSubstr("8 tensors"));
}

// A tensor of another size than its inputs ask for is no case, and is not read beyond its end.
TEST(GoldenCheck, FailsOnTensorsOfTheWrongSize) {
  for (const std::string name : {"o", "do"}) {
    const TemporaryDirectory directory;
    const auto file = SafetensorsFile::Open(kGolden + kCase);
    std::map<std::string, std::vector<double>> values;
    std::vector<NamedTensor> tensors;
    for (const auto& [key, tensor] : file.tensors()) {
      auto& copy = values[key] = file.Doubles(key);
      auto shape = tensor.shape;
      if (key == name) shape[1] += 1, copy.resize(copy.size() / 7 * 8, 0.0);
      tensors.push_back(ToStore<double>(key, shape, copy));
    }
    WriteSafetensors(directory / kCase, tensors, file.metadata());
    const Outcome outcome = GoldenCheck(directory.path());
    EXPECT_EQ(outcome.status, 1) << name;
    EXPECT_THAT(outcome.output, HasSubstr(name == "o" ? "'o' must have 168 numbers, but has 192"
                                                      : "d_o must be [B,T,HV,V]"));
  }
}

TEST(GoldenCheck, SkipsUnknownOps) {
  const TemporaryDirectory directory;
  WriteChanged(directory / "a.safetensors", "hyena", "", 0);
  WriteFileAtomic(directory / "b.json", "[1, 2]");
  const Outcome outcome = GoldenCheck(directory.path());
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("skipped  a.safetensors: unknown op 'hyena'"));
  EXPECT_THAT(outcome.output, HasSubstr("skipped  b.json"));
}

TEST(GoldenCheck, CutFilesFailAndMissingDirectoriesAreUsageErrors) {
  const TemporaryDirectory directory;
  Bytes bytes = ReadFile(kGolden + kCase);
  bytes.resize(bytes.size() - 1);
  WriteFileAtomic(directory / kCase, bytes);
  const Outcome cut = GoldenCheck(directory.path());
  EXPECT_EQ(cut.status, 1);
  EXPECT_THAT(cut.output, HasSubstr("is cut short"));
  EXPECT_EQ(GoldenCheck(directory / "missing").status, 2);
}

}  // namespace
}  // namespace linattn
