#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/png.h"

namespace linattn {

// Images of one size with their labels, in the order of the files.
struct ImageSet {
  int64_t count = 0, height = 0, width = 0, channels = 0;
  int64_t classes = 0;                   // 0: no labels
  std::vector<uint8_t> pixels;           // [count,height,width,channels]
  std::vector<int32_t> labels;           // [count], 0 <= label < classes; empty if there are none
  std::vector<std::string> class_names;  // [classes], or empty

  int64_t image_size() const { return height * width * channels; }
  const uint8_t* At(int64_t i) const { return pixels.data() + i * image_size(); }
  Image ImageAt(int64_t i) const;
};

enum class Split { kTrain, kValidation, kTest };
Split ParseSplit(std::string_view name);  // "train", "validation", "test"; throws Error

// Reads a data set:
//   "fashion-mnist" or "fashion-mnist:DIR"  the Debian package dataset-fashion-mnist (or its files
//   in DIR) "mnist:DIR"    idx files: {train,t10k}-{images-idx3,labels-idx1}-ubyte, ".idx" for
//   "-idx", .gz or not "cifar10:DIR"  data_batch_{1..5}.bin and test_batch.bin, .gz or not; or else
//   all *train*.bin and *test*.bin "png:DIR"      DIR/*.png, or DIR/CLASS/*.png with the folders'
//   names as class names
// Splits: validation is the last min(5000, count / 10, at least 1) images of the training files,
// and train is the rest, or all of them with `full_train`. PNG folders: DIR/{train,validation,test}
// if they exist; else in name order within each class, of each ten images the ninth is for
// validation and the tenth for test. Throws Error "[data] file: ..." with the bytes expected and
// found if a file is missing, cut, damaged, of another format or size, or has labels out of range.
ImageSet LoadImages(const std::string& spec, Split split, bool full_train = false);

// Images begin <= i < end.
ImageSet Slice(ImageSet set, int64_t begin, int64_t end);

}  // namespace linattn
