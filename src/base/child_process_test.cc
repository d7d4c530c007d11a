#include "base/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "base/error.h"

namespace linattn {
namespace {

TEST(ChildProcess, CapturesOutputAndStatus) {
  const ChildResult result = RunChild({"/bin/sh", "-c", "echo one; echo \"$0\"; exit 3", "two"},
                                      {.capture = true, .signal = {}});
  EXPECT_EQ(result.output, "one\ntwo\n");
  EXPECT_EQ(result.status, 3);
  EXPECT_GT(result.peak_bytes, 100'000);
}

TEST(ChildProcess, MuchOutputDoesNotBlock) {
  const ChildResult result =
      RunChild({"/bin/sh", "-c", "head -c 3000000 /dev/zero"}, {.capture = true, .signal = {}});
  EXPECT_EQ(result.output.size(), 3'000'000u);
  EXPECT_EQ(result.status, 0);
}

TEST(ChildProcess, PeakIsTheChildsOwn) {
  const ChildResult small = RunChild({"/bin/sh", "-c", "true"});
  const ChildResult large =
      RunChild({"/bin/sh", "-c", "x=$(head -c 30000000 /dev/zero | tr '\\0' a)"});
  EXPECT_GT(large.peak_bytes, small.peak_bytes + 20'000'000);
}

TEST(ChildProcess, DeathBySignalIsTold) {
  EXPECT_EQ(RunChild({"/bin/sh", "-c", "kill -9 $$"}).status, 128 + 9);
}

TEST(ChildProcess, PassesASignalOn) {
  int asked = 0;
  const ChildResult result =
      RunChild({"/bin/sh", "-c",
                "trap 'echo stopping; exit 5' TERM; echo ready; while :; do sleep 0.01; done"},
               {.capture = true, .signal = [&] { return ++asked > 20 ? SIGTERM : 0; }});
  EXPECT_EQ(result.output, "ready\nstopping\n");
  EXPECT_EQ(result.status, 5);
}

TEST(ChildProcess, RefusesWhatIsNoProgram) {
  EXPECT_THAT([] { RunChild({"/nowhere/program"}); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("'/nowhere/program'")));
  EXPECT_THAT([] { SiblingProgram("no-such-program", "compare"); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("[compare] 'no-such-program'")));
}

}  // namespace
}  // namespace linattn
