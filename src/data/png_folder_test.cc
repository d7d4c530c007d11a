#include "data/png_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

using testing::HasSubstr;

void WriteGrey(const std::string& path, uint8_t value, int64_t side = 2) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  WritePng(path, {side, side, 1, std::vector<uint8_t>(static_cast<size_t>(side * side), value)});
}

std::vector<int> FirstPixels(const ImageSet& set) {
  std::vector<int> values;
  for (int64_t i = 0; i < set.count; ++i) values.push_back(set.At(i)[0]);
  return values;
}

std::string MessageOf(const TemporaryDirectory& directory, Split split = Split::kTrain) {
  try {
    LoadImages("png:" + directory.path(), split);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(PngFolder, SplitsByNameOrder) {
  const TemporaryDirectory directory;
  for (int i = 0; i < 20; ++i)
    WriteGrey(directory / fmt::format("{:02}.png", i), static_cast<uint8_t>(i));
  const std::string spec = "png:" + directory.path();
  EXPECT_EQ(FirstPixels(LoadImages(spec, Split::kTrain)),
            (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(FirstPixels(LoadImages(spec, Split::kValidation)), (std::vector<int>{8, 18}));
  EXPECT_EQ(FirstPixels(LoadImages(spec, Split::kTest)), (std::vector<int>{9, 19}));
  const ImageSet all = LoadImages(spec, Split::kTrain, true);
  EXPECT_EQ(all.count, 18);
  EXPECT_EQ(all.classes, 0);
  EXPECT_TRUE(all.labels.empty());
  EXPECT_EQ(all.channels, 1);
}

TEST(PngFolder, SubfoldersAreClasses) {
  const TemporaryDirectory directory;
  for (int i = 0; i < 10; ++i) {
    WriteGrey(directory / fmt::format("cat/{}.png", i), static_cast<uint8_t>(i));
    WriteGrey(directory / fmt::format("ant/{}.PNG", i), static_cast<uint8_t>(100 + i));
  }
  const ImageSet test = LoadImages("png:" + directory.path(), Split::kTest);
  EXPECT_EQ(test.class_names, (std::vector<std::string>{"ant", "cat"}));
  EXPECT_EQ(test.classes, 2);
  EXPECT_EQ(test.labels, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(FirstPixels(test), (std::vector<int>{109, 9}));
  WriteGrey(directory / "loose.png", 1);
  EXPECT_THAT(MessageOf(directory), HasSubstr("either in the folder or in its subfolders"));
}

TEST(PngFolder, SplitFoldersAreUsed) {
  const TemporaryDirectory directory;
  WriteGrey(directory / "train/a/1.png", 1);
  WriteGrey(directory / "train/b/1.png", 2);
  WriteGrey(directory / "validation/a/1.png", 3);
  WriteGrey(directory / "validation/b/1.png", 4);
  const std::string spec = "png:" + directory.path();
  EXPECT_EQ(FirstPixels(LoadImages(spec, Split::kTrain)), (std::vector<int>{1, 2}));
  EXPECT_EQ(FirstPixels(LoadImages(spec, Split::kValidation)), (std::vector<int>{3, 4}));
  const ImageSet all = LoadImages(spec, Split::kTrain, true);
  EXPECT_EQ(FirstPixels(all), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(all.labels, (std::vector<int32_t>{0, 1, 0, 1}));
  EXPECT_THAT(MessageOf(directory, Split::kTest), HasSubstr(directory / "test"));
}

TEST(PngFolder, FaultsAreNamed) {
  const TemporaryDirectory directory;
  EXPECT_THAT(MessageOf(directory), HasSubstr("looked for *.png and CLASS/*.png, found none"));
  WriteGrey(directory / "a.png", 1);
  EXPECT_THAT(MessageOf(directory, Split::kTest), HasSubstr("the test split is empty"));
  WriteGrey(directory / "b.png", 1, 3);
  EXPECT_EQ(MessageOf(directory),
            "[data] " + (directory / "b.png") +
                ": all images must be 2x2x1 like the first, but this is 3x3x1");
  WriteFileAtomic(directory / "b.png", "not a picture");
  EXPECT_THAT(MessageOf(directory), HasSubstr("b.png: must be a PNG file"));
}

}  // namespace
}  // namespace linattn
