#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/error_testing.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

TEST(File, WritesAndReadsBack) {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.bin";
  const Bytes first = {1, 0, 255}, second = {7};
  const std::span<const uint8_t> parts[] = {first, second};
  WriteFileAtomic(path, parts);
  EXPECT_EQ(ReadFile(path), (Bytes{1, 0, 255, 7}));
  WriteFileAtomic(path, "new");
  EXPECT_EQ(AsText(ReadFile(path)), "new");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(File, ReplacesTheTraceOfACrashedWriter) {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.bin";
  WriteFileAtomic(path, "good");
  WriteFileAtomic(path + ".tmp", "half of somethi");
  WriteFileAtomic(path, "new");
  EXPECT_EQ(AsText(ReadFile(path)), "new");
}

TEST(File, DevicesAreWrittenToAndNotReplaced) {
  const TemporaryDirectory directory;
  const std::string link = directory / "link";
  std::filesystem::create_symlink("/dev/null", link);
  WriteFileAtomic(link, "gone");
  EXPECT_TRUE(std::filesystem::is_character_file(link));
}

TEST(File, ErrorsNameThePathAndTheReason) {
  const TemporaryDirectory directory;
  const std::string missing = directory / "missing.bin";
  try {
    ReadFile(missing, "data");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "[data] cannot read '" + missing + "': No such file or directory");
    EXPECT_EQ(e.fault(), Fault::kCaller);
  }
  EXPECT_THROW(ReadFile(directory.path()), Error);
  EXPECT_THROW(WriteFileAtomic(directory / "no/such/place", "x"), Error);
}

TEST(File, WhereNothingCanBeWrittenIsSaidBeforeTheWork) {
  const TemporaryDirectory directory;
  const auto message = [](const std::string& path) {
    return MessageOf([&] { CheckOut(path, "verb", "--save-state"); });
  };
  for (const std::string& path : {std::string(), std::string("-"), std::string("/dev/null"),
                                  std::string("x"), directory / "new.bin"})
    EXPECT_EQ(message(path), "no error") << path;
  EXPECT_EQ(message(directory / "no/x"),
            "[verb] --save-state must be in a directory that exists, but '" + directory / "no" +
                "' does not");
  EXPECT_EQ(message(directory.path()),
            "[verb] --save-state must be a file, but '" + directory.path() + "' is a directory");
  EXPECT_EQ(MessageOf([&] { CheckOut(directory / "no/x", "verb"); }).substr(0, 12), "[verb] --out");
}

TEST(File, PrintableHidesControlCharacters) {
  EXPECT_EQ(Printable("a\x1b[31m\n"), "a\\x1b[31m\\x0a");
  EXPECT_EQ(Printable(std::string(1000, 'x')), std::string(60, 'x') + "..." + std::string(60, 'x'));
}

}  // namespace
}  // namespace linattn
