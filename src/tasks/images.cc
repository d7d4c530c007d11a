#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/png.h"
#include "base/random.h"
#include "data/image_set.h"
#include "tasks/task.h"

namespace linattn {
namespace {

// Streams of the seed: an epoch's order, and whether an image is mirrored.
constexpr uint64_t kOrderStream = uint64_t{1} << 62, kFlipStream = uint64_t{1} << 61;

// Pictures, sub-pixel by sub-pixel. Every epoch passes through all of them in an order of its own.
class ImagesTask : public Task {
 public:
  explicit ImagesTask(const TaskOptions& options)
      : Task(options),
        train_(LoadImages(options.data.source, Split::kTrain, options.data.full_train)),
        held_out_(LoadImages(options.data.source,
                             options.data.full_train ? Split::kTest : Split::kValidation)) {
    CheckFits(train_);
    CheckFits(held_out_);
    if (options.data.limit > 0 && options.data.limit < train_.count) {
      train_ = Slice(train_, 0, options.data.limit);
    }
  }

  std::vector<Metric> metrics() const override { return {{"bits_per_dim"}}; }
  std::string Summary() const override {
    return fmt::format("{}: {} images of {} x {} x {} to train on, {} of {} {} ones to evaluate",
                       options_.data.source, train_.count, train_.height, train_.width,
                       train_.channels, eval_count(), held_out_.count,
                       options_.data.full_train ? "test" : "validation");
  }

  Batch TrainBatch(int64_t index) const override {
    Batch batch = EmptyBatch(options_.batch, train_.image_size());
    for (int64_t row = 0; row < options_.batch; ++row) {
      const int64_t drawn = index * options_.batch + row;
      const int64_t epoch = drawn / train_.count;
      if (epoch != epoch_) {
        order_ = Permutation(train_.count, options_.seed, kOrderStream + epoch);
        epoch_ = epoch;
      }
      const int64_t image = order_[drawn % train_.count];
      if (options_.data.flip && Random(options_.seed, kFlipStream + drawn).NextU32() % 2 == 1) {
        FillRow(batch, row, Start(train_, image), Mirrored(image).data(), train_.image_size());
      } else {
        FillRow(batch, row, Start(train_, image), train_.At(image), train_.image_size());
      }
    }
    return batch;
  }

  int64_t eval_batches() const override {
    return (eval_count() + options_.batch - 1) / options_.batch;
  }
  Batch EvalBatch(int64_t index) const override {
    const int64_t first = index * options_.batch;
    const int64_t rows = std::min(options_.batch, eval_count() - first);
    Batch batch = EmptyBatch(rows, held_out_.image_size());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t image = (first + row) * held_out_.count / eval_count();
      FillRow(batch, row, Start(held_out_, image), held_out_.At(image), held_out_.image_size());
    }
    return batch;
  }

  std::vector<std::string> class_names() const override { return train_.class_names; }

  std::vector<Prompt> Prompts(int64_t n) const override {
    std::vector<Prompt> prompts(n, {0, std::vector<int32_t>(options_.model.max_len, -1)});
    if (options_.model.classes > 0) {
      for (int64_t i = 0; i < n; ++i) prompts[i].label = i % options_.model.classes;
    }
    return prompts;
  }

  std::string WriteSamples(const std::vector<std::vector<int32_t>>& sequences,
                           const std::string& stem) const override {
    std::vector<Image> images;
    for (const auto& sequence : sequences) {
      Image image{train_.height, train_.width, train_.channels, {}};
      image.pixels.assign(sequence.begin(), sequence.end());
      images.push_back(std::move(image));
    }
    const int64_t columns = options_.model.classes > 0 && options_.model.classes <= 20
                                ? options_.model.classes
                                : std::ceil(std::sqrt(images.size()));
    WritePng(stem + ".png", Grid(images, columns));
    return stem + ".png";
  }

 private:
  void CheckFits(const ImageSet& set) const {
    const ModelConfig& m = options_.model;
    Check(set.height == m.height && set.width == m.width && set.channels == m.channels, "images",
          "{} must have images of the model's {} x {} x {}, but has {} x {} x {}",
          options_.data.source, m.height, m.width, m.channels, set.height, set.width, set.channels);
    Check(m.classes == 0 || set.classes == m.classes, "images",
          "{} must have the model's {} classes, but has {}", options_.data.source, m.classes,
          set.classes);
    Check(set.count > 0, "images", "{} must not be empty", options_.data.source);
  }

  int64_t eval_count() const {
    const int64_t wanted = options_.eval_examples;
    return wanted > 0 ? std::min(wanted, held_out_.count) : held_out_.count;
  }
  int64_t Start(const ImageSet& set, int64_t image) const {
    return options_.model.start_token(options_.model.classes > 0 ? set.labels[image] : 0);
  }
  std::vector<uint8_t> Mirrored(int64_t image) const {
    std::vector<uint8_t> mirrored(train_.image_size());
    const int64_t channels = train_.channels, width = train_.width;
    for (int64_t y = 0; y < train_.height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        std::memcpy(&mirrored[(y * width + x) * channels],
                    train_.At(image) + (y * width + width - 1 - x) * channels, channels);
      }
    }
    return mirrored;
  }

  ImageSet train_, held_out_;
  mutable int64_t epoch_ = -1;  // that order_ is of
  mutable std::vector<int64_t> order_;
};

}  // namespace

std::unique_ptr<Task> MakeImagesTask(const TaskOptions& options) {
  return std::make_unique<ImagesTask>(options);
}

}  // namespace linattn
