#include "data/png_folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace linattn {
namespace {

namespace fs = std::filesystem;

struct Class {
  std::string name;
  std::vector<std::string> files;  // in name order
};

bool IsPng(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".png";
}

std::vector<fs::path> SortedEntries(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string()[0] != '.') entries.push_back(it->path());
  Check(!error, "data", "cannot read the folder '{}': {}", directory, error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::vector<std::string> PngFiles(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& path : SortedEntries(directory))
    if (IsPng(path)) files.push_back(path.string());
  return files;
}

// One class a subfolder with PNG files in it, or one nameless class.
std::vector<Class> FindClasses(const std::string& directory) {
  std::vector<Class> classes;
  for (const auto& path : SortedEntries(directory)) {
    if (!fs::is_directory(path)) continue;
    auto files = PngFiles(path.string());
    if (!files.empty()) classes.push_back({path.filename().string(), std::move(files)});
  }
  auto loose = PngFiles(directory);
  Check(loose.empty() || classes.empty(), "data",
        "{}: PNG files must lie either in the folder or in its subfolders (classes), but '{}' and "
        "'{}' do both",
        directory, loose.empty() ? "" : loose[0], classes.empty() ? "" : classes[0].files[0]);
  if (!loose.empty()) classes.push_back({"", std::move(loose)});
  Check(!classes.empty(), "data", "{}: looked for *.png and CLASS/*.png, found none", directory);
  return classes;
}

bool InSplit(size_t index, Split split, bool full_train) {
  const size_t place = index % 10;
  if (split == Split::kTest) return place == 9;
  if (split == Split::kValidation) return place == 8;
  return place < 8 || (place == 8 && full_train);
}

void Append(ImageSet& set, const std::string& file, int32_t label) {
  const Image image = ReadPng(file, "data");
  if (set.count == 0) {
    set.height = image.height;
    set.width = image.width;
    set.channels = image.channels;
  }
  Check(image.height == set.height && image.width == set.width && image.channels == set.channels,
        "data", "{}: all images must be {}x{}x{} like the first, but this is {}x{}x{}", file,
        set.height, set.width, set.channels, image.height, image.width, image.channels);
  set.pixels.insert(set.pixels.end(), image.pixels.begin(), image.pixels.end());
  if (set.classes > 0) set.labels.push_back(label);
  ++set.count;
}

template <class Keep>
ImageSet ReadClasses(const std::vector<Class>& classes, Keep keep) {
  ImageSet set;
  if (!classes[0].name.empty()) {
    set.classes = static_cast<int64_t>(classes.size());
    for (const auto& c : classes) set.class_names.push_back(c.name);
  }
  for (size_t label = 0; label < classes.size(); ++label)
    for (size_t i = 0; i < classes[label].files.size(); ++i)
      if (keep(i)) Append(set, classes[label].files[i], static_cast<int32_t>(label));
  return set;
}

void AppendSet(ImageSet& set, const ImageSet& more, const std::string& directory) {
  Check(more.image_size() == set.image_size() && more.width == set.width &&
            more.class_names == set.class_names,
        "data", "{}: train and validation must have the same image size and classes", directory);
  set.count += more.count;
  set.pixels.insert(set.pixels.end(), more.pixels.begin(), more.pixels.end());
  set.labels.insert(set.labels.end(), more.labels.begin(), more.labels.end());
}

}  // namespace

ImageSet LoadPngFolder(const std::string& directory, Split split, bool full_train) {
  static constexpr const char* kNames[] = {"train", "validation", "test"};
  const auto all = [](size_t) { return true; };
  if (fs::is_directory(directory + "/train")) {
    const std::string folder = directory + "/" + kNames[static_cast<int>(split)];
    ImageSet set = ReadClasses(FindClasses(folder), all);
    const std::string validation = directory + "/validation";
    if (split == Split::kTrain && full_train && fs::is_directory(validation))
      AppendSet(set, ReadClasses(FindClasses(validation), all), directory);
    return set;
  }
  const auto classes = FindClasses(directory);
  ImageSet set = ReadClasses(classes, [&](size_t i) { return InSplit(i, split, full_train); });
  Check(
      set.count > 0, "data",
      "{}: the {} split is empty: every ninth of ten images is for validation and every tenth for "
      "test, and the largest class has {}",
      directory, kNames[static_cast<int>(split)],
      std::max_element(classes.begin(), classes.end(), [](const Class& a, const Class& b) {
        return a.files.size() < b.files.size();
      })->files.size());
  return set;
}

}  // namespace linattn
