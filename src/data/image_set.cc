#include "data/image_set.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/cifar.h"
#include "data/idx.h"
#include "data/png_folder.h"

namespace linattn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFashionDirectory = "/usr/share/datasets/fashion-mnist";

// The files of a folder whose name holds `part` and ends with one of `endings`, in name order.
std::vector<std::string> FilesLike(const std::string& directory, std::string_view part,
                                   const std::vector<std::string>& endings) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool ends = std::any_of(endings.begin(), endings.end(),
                                  [&](const std::string& e) { return name.ends_with(e); });
    if (ends && name.find(part) != name.npos) files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The first of `names` that exists in the folder, or "".
std::string FirstOf(const std::string& directory, const std::vector<std::string>& names) {
  for (const auto& name : names)
    if (fs::exists(directory + "/" + name)) return directory + "/" + name;
  return "";
}

// stem "train-images", kind "idx3": both spellings, .gz or not; else the one file like
// "train*-images*".
std::string FindIdx(const std::string& directory, const std::string& set, const std::string& what,
                    std::string_view hint) {
  const std::string kind = what == "images" ? "idx3" : "idx1";
  std::vector<std::string> endings, names;
  for (const char* mark : {"-", "."})
    for (const char* packed : {"", ".gz"})
      endings.push_back(fmt::format("-{}{}{}-ubyte{}", what, mark, kind, packed));
  for (const auto& ending : endings) names.push_back(set + ending);
  if (const std::string exact = FirstOf(directory, names); !exact.empty()) return exact;
  const auto similar = FilesLike(directory, set, endings);
  if (similar.size() == 1) return similar[0];
  Check(similar.empty(), "data", "{}: which file holds the {}? Found {}; name it {}", directory,
        what, fmt::join(similar, ", "), names[1]);
  Fail("data", "{}: looked for {}, found none{}", directory, fmt::join(names, ", "), hint);
}

ImageSet LoadIdx(const std::string& directory, const std::string& set, std::string_view hint) {
  const std::string images = FindIdx(directory, set, "images", hint);
  const std::string labels = FindIdx(directory, set, "labels", hint);
  ImageSet result = ParseIdxImages(ReadFile(images, "data"), images);
  result.classes = 10;
  result.labels = ParseIdxLabels(ReadFile(labels, "data"), result.classes, labels);
  Check(std::cmp_equal(result.labels.size(), result.count), "data",
        "{} has {} images, but {} has {} labels", images, result.count, labels,
        result.labels.size());
  return result;
}

ImageSet LoadMnist(const std::string& directory, bool test) {
  ImageSet set = LoadIdx(directory, test ? "t10k" : "train", "");
  for (int digit = 0; digit < 10; ++digit) set.class_names.push_back(std::to_string(digit));
  return set;
}

ImageSet LoadFashion(const std::string& directory, bool test) {
  ImageSet set = LoadIdx(directory, test ? "t10k" : "train",
                         "; install them with `apt-get install dataset-fashion-mnist`");
  set.class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                     "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  return set;
}

// The standard names, all of them; or else every file that has "train" or "test" in its name.
std::vector<std::string> FindCifar(const std::string& directory, bool test) {
  std::vector<std::string> stems, files, missing;
  if (test)
    stems = {"test_batch"};
  else
    for (int i = 1; i <= 5; ++i) stems.push_back(fmt::format("data_batch_{}", i));
  for (const auto& stem : stems) {
    const std::string file = FirstOf(directory, {stem + ".bin", stem + ".bin.gz"});
    (file.empty() ? missing : files).push_back(file.empty() ? stem + ".bin" : file);
  }
  if (missing.empty()) return files;
  if (files.empty())
    files = FilesLike(directory, test ? "test" : "train", {".bin", ".bin.gz"});
  else
    Fail("data", "{}: {} of {} files missing: {} (.gz or not)", directory, missing.size(),
         stems.size(), fmt::join(missing, ", "));
  Check(!files.empty(), "data", "{}: looked for {} and for *{}*.bin (.gz or not), found none",
        directory, fmt::join(missing, ", "), test ? "test" : "train");
  return files;
}

ImageSet LoadCifar(const std::string& directory, bool test) {
  ImageSet all;
  for (const auto& file : FindCifar(directory, test)) {
    ImageSet set = ParseCifar10(ReadFile(file, "data"), file);
    if (all.count == 0) {
      all = std::move(set);
      continue;
    }
    all.count += set.count;
    all.pixels.insert(all.pixels.end(), set.pixels.begin(), set.pixels.end());
    all.labels.insert(all.labels.end(), set.labels.begin(), set.labels.end());
  }
  return all;
}

// Train or validation, of the training files.
ImageSet SplitTraining(ImageSet set, Split split, bool full_train, const std::string& spec) {
  if (split == Split::kTrain && full_train) return set;
  Check(set.count >= 2, "data", "{}: must have at least 2 training images to split, but has {}",
        spec, set.count);
  const int64_t held = std::clamp<int64_t>(set.count / 10, 1, 5000);
  const int64_t cut = set.count - held;
  const int64_t begin = split == Split::kTrain ? 0 : cut;
  const int64_t end = split == Split::kTrain ? cut : set.count;
  return Slice(std::move(set), begin, end);
}

}  // namespace

Image ImageSet::ImageAt(int64_t i) const {
  return {height, width, channels, {At(i), At(i) + image_size()}};
}

Split ParseSplit(std::string_view name) {
  if (name == "train") return Split::kTrain;
  if (name == "validation") return Split::kValidation;
  if (name == "test") return Split::kTest;
  Fail("data", "split must be train, validation or test, but is '{}'", name);
}

ImageSet LoadImages(const std::string& spec, Split split, bool full_train) {
  const size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon);
  std::string directory = colon == spec.npos ? "" : spec.substr(colon + 1);
  if (kind == "fashion-mnist" && directory.empty()) directory = kFashionDirectory;
  const bool known =
      kind == "fashion-mnist" || kind == "mnist" || kind == "cifar10" || kind == "png";
  Check(known && !directory.empty(), "data",
        "data must be fashion-mnist, mnist:DIR, cifar10:DIR or png:DIR, but is '{}'", spec);
  Check(fs::is_directory(directory), "data", "the folder '{}' of '{}' does not exist{}", directory,
        spec,
        kind == "fashion-mnist" ? "; install it with `apt-get install dataset-fashion-mnist`" : "");
  if (kind == "png") return LoadPngFolder(directory, split, full_train);
  const bool test = split == Split::kTest;
  ImageSet set = kind == "cifar10" ? LoadCifar(directory, test)
                 : kind == "mnist" ? LoadMnist(directory, test)
                                   : LoadFashion(directory, test);
  return test ? set : SplitTraining(std::move(set), split, full_train, spec);
}

ImageSet Slice(ImageSet set, int64_t begin, int64_t end) {
  Check(0 <= begin && begin <= end && end <= set.count, "data",
        "a slice must lie within 0 to {}, but is {} to {}", set.count, begin, end);
  const int64_t size = set.image_size();
  set.pixels.resize(static_cast<size_t>(end * size));
  set.pixels.erase(set.pixels.begin(), set.pixels.begin() + begin * size);
  if (!set.labels.empty()) {
    set.labels.resize(static_cast<size_t>(end));
    set.labels.erase(set.labels.begin(), set.labels.begin() + begin);
  }
  set.count = end - begin;
  return set;
}

}  // namespace linattn
