#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace linattn {

// What a task learns from. Travels in the run's config as the table [data].
struct DataConfig {
  // images: a data set as LoadImages (data/image_set.h) spells it; text: a file; what is made up
  // has none
  std::string source = "fashion-mnist";
  bool full_train = false;  // train on the validation images too; the test set is evaluated then
  int64_t limit = 0;        // training images at most; 0: all
  bool flip = false;        // half of the images are mirrored
  int64_t pairs = 64;       // recall: of key and value, at most
};

// False if the task's examples are made up.
bool ReadsData(std::string_view task);

}  // namespace linattn
