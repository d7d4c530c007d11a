#include "data/image_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/temporary_directory.h"
#include "data/gzip.h"

namespace linattn {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const std::string kMnist = LINATTN_TESTDATA "/mnist";
const std::string kCifar = LINATTN_TESTDATA "/cifar10";

std::string MessageOf(const std::string& spec, Split split = Split::kTest) {
  try {
    LoadImages(spec, split);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(LoadImages, SplitsTheTrainingFiles) {
  const ImageSet train = LoadImages("mnist:" + kMnist, Split::kTrain);
  const ImageSet validation = LoadImages("mnist:" + kMnist, Split::kValidation);
  const ImageSet all = LoadImages("mnist:" + kMnist, Split::kTrain, true);
  EXPECT_EQ(train.count, 18);
  EXPECT_EQ(validation.count, 2);  // 10% of 20
  EXPECT_EQ(all.count, 20);
  EXPECT_EQ(validation.labels, (std::vector<int32_t>{6, 9}));
  EXPECT_EQ(train.labels.size(), 18u);
  EXPECT_TRUE(std::equal(validation.pixels.begin(), validation.pixels.end(), all.At(18)));
  EXPECT_TRUE(std::equal(train.pixels.begin(), train.pixels.end(), all.At(0)));
  EXPECT_EQ(std::accumulate(all.At(0), all.At(1), 0), 27525);
  EXPECT_EQ(all.class_names[9], "9");
  const ImageSet test = LoadImages("mnist:" + kMnist, Split::kTest);
  EXPECT_EQ(test.count, 20);
  EXPECT_EQ(test.labels[0], 7);
}

// F4: the four names, for images and labels.
TEST(LoadImages, FindsBothSpellingsPackedOrNot) {
  for (const char* mark : {"-", "."})
    for (const bool packed : {false, true}) {
      const TemporaryDirectory directory;
      for (const std::string what : {"images-idx3", "labels-idx1"}) {
        std::string name = "t10k-" + what + "-ubyte";
        const Bytes stored = ReadFile(kMnist + "/" + name + ".gz");
        name[name.find("-idx")] = mark[0];
        if (packed)
          WriteFileAtomic(directory / (name + ".gz"), stored);
        else
          WriteFileAtomic(directory / name, Unpack(stored, 1 << 20, name).bytes);
      }
      EXPECT_EQ(LoadImages("mnist:" + directory.path(), Split::kTest).count, 20) << mark << packed;
    }
}

TEST(LoadImages, MissingFilesAreListed) {
  const TemporaryDirectory directory;
  EXPECT_EQ(MessageOf("mnist:" + directory.path()),
            "[data] " + directory.path() +
                ": looked for t10k-images-idx3-ubyte, t10k-images-idx3-ubyte.gz, "
                "t10k-images.idx3-ubyte, t10k-images.idx3-ubyte.gz, found none");
  EXPECT_THAT(MessageOf("fashion-mnist:" + directory.path()),
              HasSubstr("apt-get install dataset-fashion-mnist"));
  EXPECT_THAT(MessageOf("cifar10:" + directory.path(), Split::kTrain),
              HasSubstr("looked for data_batch_1.bin, data_batch_2.bin"));
  EXPECT_THAT(MessageOf("mnist:/no/such/folder"), HasSubstr("'/no/such/folder'"));
  EXPECT_THAT(MessageOf("imagenet"), HasSubstr("but is 'imagenet'"));
  EXPECT_THAT(MessageOf("mnist"), HasSubstr("mnist:DIR"));
}

TEST(LoadImages, FilesOfOtherNamesMustBeUnique) {
  const TemporaryDirectory directory;
  const std::string ending = "-images-idx3-ubyte.gz";
  fs::copy(kMnist + "/t10k-labels-idx1-ubyte.gz", directory / "t10k-labels-idx1-ubyte.gz");
  fs::copy(kMnist + "/t10k" + ending, directory / ("t10k_a" + ending));
  EXPECT_EQ(LoadImages("mnist:" + directory.path(), Split::kTest).count, 20);
  fs::copy(kMnist + "/t10k" + ending, directory / ("t10k_b" + ending));
  EXPECT_THAT(
      MessageOf("mnist:" + directory.path()),
      AllOf(HasSubstr("which file holds the images? Found "), HasSubstr("t10k_b" + ending)));
}

TEST(LoadImages, CountsMustMatch) {
  const TemporaryDirectory directory;
  fs::copy(kMnist + "/t10k-images-idx3-ubyte.gz", directory / "t10k-images-idx3-ubyte.gz");
  WriteFileAtomic(directory / "t10k-labels-idx1-ubyte", Bytes{0, 0, 8, 1, 0, 0, 0, 2, 3, 4});
  EXPECT_EQ(MessageOf("mnist:" + directory.path()),
            "[data] " + directory.path() + "/t10k-images-idx3-ubyte.gz has 20 images, but " +
                directory.path() + "/t10k-labels-idx1-ubyte has 2 labels");
}

// The complete set of the Debian package, where it is installed.
TEST(LoadImages, FashionMnist) {
  if (!fs::exists("/usr/share/datasets/fashion-mnist")) GTEST_SKIP() << "package is not installed";
  const ImageSet train = LoadImages("fashion-mnist", Split::kTrain);
  EXPECT_EQ(train.count, 55000);
  EXPECT_EQ(train.height, 28);
  EXPECT_EQ(train.class_names.at(static_cast<size_t>(train.labels[0])), "Ankle boot");
  EXPECT_EQ(LoadImages("fashion-mnist", Split::kValidation).count, 5000);
  EXPECT_EQ(LoadImages("fashion-mnist", Split::kTest).count, 10000);
}

TEST(LoadImages, CifarByAnyNameOrAllFiveStandardOnes) {
  EXPECT_EQ(LoadImages("cifar10:" + kCifar, Split::kTrain).count, 9);
  EXPECT_EQ(LoadImages("cifar10:" + kCifar, Split::kValidation).labels, (std::vector<int32_t>{3}));
  EXPECT_EQ(LoadImages("cifar10:" + kCifar, Split::kTest).count, 10);
  const TemporaryDirectory directory;
  for (const int i : {1, 2, 4, 5})
    fs::copy(kCifar + "/train_10.bin.gz", directory / fmt::format("data_batch_{}.bin.gz", i));
  EXPECT_EQ(MessageOf("cifar10:" + directory.path(), Split::kTrain),
            "[data] " + directory.path() + ": 1 of 5 files missing: data_batch_3.bin (.gz or not)");
  fs::copy(kCifar + "/train_10.bin.gz", directory / "data_batch_3.bin.gz");
  const ImageSet all = LoadImages("cifar10:" + directory.path(), Split::kTrain, true);
  EXPECT_EQ(all.count, 50);
  EXPECT_EQ(all.labels.size(), 50u);
  EXPECT_EQ(all.At(49)[0], all.At(9)[0]);
}

TEST(LoadImages, SplitNames) {
  EXPECT_EQ(ParseSplit("validation"), Split::kValidation);
  EXPECT_THROW(ParseSplit("dev"), Error);
}

}  // namespace
}  // namespace linattn
