#include "base/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace linattn {
namespace {

std::vector<std::string> LinesOf(std::FILE* file) {
  std::rewind(file);
  std::string text;
  char block[4096];
  for (size_t n; (n = std::fread(block, 1, sizeof block, file)) > 0;) text.append(block, n);
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// D6: into a file, 1000 steps of 0.1 s each.
TEST(Progress, WritesPlainLinesAtASaneRateWhenNotATerminal) {
  std::FILE* file = std::tmpfile();
  double now = 0;
  {
    Progress progress(1000, file, {Progress::Style::kAuto, "step", [&] { return now; }});
    for (int step = 1; step <= 1000; ++step) {
      now += 0.1;
      progress.Update(step, "loss 1.25");
    }
  }
  const auto lines = LinesOf(file);
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.front(), "step 1/1000  10/s  1:40 left  loss 1.25");
  EXPECT_EQ(lines.back(), "step 1000/1000  10/s  in 1:40  loss 1.25");
  EXPECT_GE(lines.size(), 45u);
  EXPECT_LT(lines.size(), 60u);  // of 100 s
  for (const auto& line : lines) {
    EXPECT_THAT(line, testing::Not(testing::HasSubstr("\r")));
    EXPECT_THAT(line, testing::Not(testing::HasSubstr("\x1b")));
  }
  std::fclose(file);
}

TEST(Progress, FirstLineReachesAPipeAtOnce) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  std::FILE* out = fdopen(fds[1], "w");
  Progress progress(10, out);
  progress.Update(1);
  char block[64];
  const ssize_t n = read(fds[0], block, sizeof block);  // would hang if the line were held back
  EXPECT_EQ(std::string(block, n).substr(0, 9), "step 1/10");
  EXPECT_EQ(block[n - 1], '\n');
  close(fds[0]);
  progress.Note("one more");  // SIGPIPE would end the test here
  EXPECT_TRUE(progress.closed());
  progress.Finish();
  std::fclose(out);
}

TEST(Progress, RedrawsOneLineOnATerminal) {
  const int controller = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(controller, 0);
  ASSERT_EQ(grantpt(controller), 0);
  ASSERT_EQ(unlockpt(controller), 0);
  std::FILE* terminal = fdopen(open(ptsname(controller), O_RDWR | O_NOCTTY), "w");
  ASSERT_NE(terminal, nullptr);
  double now = 0;
  Progress progress(4, terminal, {Progress::Style::kAuto, "step", [&] { return now; }});
  now = 1;
  progress.Update(1, "loss 2");
  now = 2;
  progress.Update(2, "loss 1");
  char block[512];
  std::string text;
  while (text.find("loss 1") == std::string::npos) {
    const ssize_t n = read(controller, block, sizeof block);
    ASSERT_GT(n, 0);
    text.append(block, n);
  }
  EXPECT_THAT(text,
              testing::HasSubstr("\r[#####...............] step 1/4  1/s  0:03 left  loss 2"));
  EXPECT_THAT(text,
              testing::HasSubstr("\r[##########..........] step 2/4  1/s  0:02 left  loss 1"));
  EXPECT_EQ(text.find('\n'), std::string::npos);
  progress.Finish();
  std::fclose(terminal);
  close(controller);
}

TEST(Progress, RateOfAResumedRunCountsItsOwnSteps) {
  std::FILE* file = std::tmpfile();
  double now = 0;
  Progress progress(200, file, {Progress::Style::kLines, "step", [&] { return now; }});
  progress.Start(100);
  now = 10;
  progress.Update(120);
  EXPECT_EQ(LinesOf(file).front(), "step 120/200  2/s  0:40 left");
  progress.Finish();
  std::fclose(file);
}

TEST(Progress, ABudgetOfTimeIsAClock) {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(300, file, {.style = Progress::Style::kLines, .now = {}, .clock = true});
    progress.Update(90, "step 7");
    progress.Update(300, "step 20");
  }
  EXPECT_EQ(LinesOf(file), (std::vector<std::string>{"1:30/5:00  step 7", "5:00/5:00  step 20"}));
  std::fclose(file);
}

TEST(Progress, QuietWritesNothing) {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(2, file, true);
    progress.Update(1);
    progress.Note("a");
  }
  EXPECT_TRUE(LinesOf(file).empty());
  std::fclose(file);
}

}  // namespace
}  // namespace linattn
