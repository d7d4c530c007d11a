#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "cli/console.h"
#include "cli/loaded_model.h"
#include "cli/pictures.h"
#include "cli/verbs.h"
#include "data/image_set.h"
#include "runtime/generate.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn complete model.safetensors --data fashion-mnist            lower halves of 8 test pictures
  linattn complete model.safetensors --data cifar10:DIR --keep 0.25 --n 4 --samples 6
  linattn complete model.safetensors --image shirt.png --class shirt --rows 10
  linattn complete model.safetensors --data fashion-mnist --hide 8:20,8:20
A row of the PNG: the original, what the model sees of it, and its completions.)";

struct Options {
  WeightType dtype = WeightType::kFloat32;
  std::string model, data, split = "test", seed, label, hide;
  std::vector<std::string> images;
  GridOptions grid;
  int64_t n = 8, first = 0, samples = 4, rows = -1, batch = 32;
  double temperature = 1, keep = 0.5;
  bool no_cache = false;
};

// Rows top <= y < bottom, columns left <= x < right.
struct Box {
  int64_t top = 0, bottom = 0, left = 0, right = 0;
};

// "TOP:BOTTOM" or "TOP:BOTTOM,LEFT:RIGHT".
Box ParseBox(const std::string& text, const ModelConfig& c) {
  Box box{0, 0, 0, c.width};
  const char* p = text.c_str();
  int end = 0;
  const int rows = std::sscanf(p, "%ld:%ld%n", &box.top, &box.bottom, &end);
  const bool columns = rows == 2 && p[end] == ',';
  if (columns) {
    int more = 0;
    const int got = std::sscanf(p + end, ",%ld:%ld%n", &box.left, &box.right, &more);
    end = got == 2 ? end + more : -1;
  }
  const bool inside = box.top >= 0 && box.top < box.bottom && box.bottom <= c.height &&
                      box.left >= 0 && box.left < box.right && box.right <= c.width;
  Check(rows == 2 && end > 0 && p[end] == '\0' && inside, "complete",
        "--hide must be TOP:BOTTOM or TOP:BOTTOM,LEFT:RIGHT within {} rows and {} columns, but is "
        "'{}'",
        c.height, c.width, text);
  return box;
}

Box HiddenBox(const Options& o, const ModelConfig& c) {
  if (!o.hide.empty()) return ParseBox(o.hide, c);
  const int64_t rows = o.rows >= 0 ? o.rows : std::llround(o.keep * static_cast<double>(c.height));
  Check(rows >= 0 && rows < c.height, "complete",
        "the visible rows must be from 0 to {}, so that something is hidden, but are {}",
        c.height - 1, rows);
  return {rows, c.height, 0, c.width};
}

// The originals with their labels, from --data or --image.
ImageSet Originals(const Options& o, const LoadedModel& model) {
  const ModelConfig& c = model.config();
  ImageSet set;
  if (o.images.empty()) {
    const ImageSet all = LoadImages(o.data, ParseSplit(o.split));
    Check(o.first >= 0 && o.first < all.count, "complete",
          "--first must be from 0 to {}, the last picture, but is {}", all.count - 1, o.first);
    set = Slice(all, o.first, std::min(all.count, o.first + o.n));
  } else {
    for (const std::string& path : o.images) {
      const Image image = ReadPng(path, "complete");
      const bool same = set.count == 0 || (image.height == set.height && image.width == set.width &&
                                           image.channels == set.channels);
      Check(same, "complete", "all pictures must be of one size, but {} is not", path);
      set.height = image.height, set.width = image.width, set.channels = image.channels;
      set.pixels.insert(set.pixels.end(), image.pixels.begin(), image.pixels.end());
      ++set.count;
    }
  }
  Check(set.height == c.height && set.width == c.width && set.channels == c.channels, "complete",
        "the pictures must be {} x {} x {} (height, width, channels) for this model, but are {} x "
        "{} x {}",
        c.height, c.width, c.channels, set.height, set.width, set.channels);
  return set;
}

int64_t LabelOf(const Options& o, const LoadedModel& model, const ImageSet& set, int64_t i) {
  if (!o.label.empty()) return model.ClassNamed(o.label);
  const int64_t classes = model.config().classes;
  if (classes == 0) return 0;
  Check(!set.labels.empty(), "complete",
        "the model is conditional: --class must be given for pictures without labels");
  Check(set.labels[i] < classes, "complete", "label {} must be below the model's {} classes",
        set.labels[i], classes);
  return set.labels[i];
}

std::vector<Request> MakeRequests(const Options& o, const LoadedModel& model, const ImageSet& set) {
  const ModelConfig& c = model.config();
  const Box box = HiddenBox(o, c);
  std::vector<Request> requests;
  for (int64_t i = 0; i < set.count; ++i) {
    Request request;
    request.label = LabelOf(o, model, set, i);
    request.symbols.assign(set.At(i), set.At(i) + set.image_size());
    for (int64_t y = box.top; y < box.bottom; ++y) {
      for (int64_t x = box.left * c.channels; x < box.right * c.channels; ++x) {
        request.symbols[y * c.width * c.channels + x] = kUnknown;
      }
    }
    for (int64_t s = 0; s < o.samples; ++s) {
      request.stream = static_cast<uint64_t>(i * o.samples + s);
      requests.push_back(request);
    }
  }
  return requests;
}

// original | what is seen | completions, a row a picture.
std::vector<Image> Rows(const ImageSet& set, const std::vector<Image>& seen,
                        const std::vector<Request>& requests, const ModelConfig& c) {
  const int64_t samples = static_cast<int64_t>(requests.size()) / set.count;
  std::vector<Image> pictures;
  for (int64_t i = 0; i < set.count; ++i) {
    pictures.push_back(set.ImageAt(i));
    pictures.push_back(seen[i]);
    for (int64_t s = 0; s < samples; ++s) {
      pictures.push_back(PictureOf(c, requests[i * samples + s].symbols));
    }
  }
  return pictures;
}

void Run(const Options& o, const Common& common) {
  Check(o.data.empty() != o.images.empty(), "complete",
        "pictures must be given by either --data or --image");
  CheckOut(o.grid.out, "complete");
  const LoadedModel model(o.model, o.dtype);
  const ModelConfig& c = model.config();
  CheckTask(c, "complete", {"images"});
  const ImageSet set = Originals(o, model);
  std::vector<Request> requests = MakeRequests(o, model, set);
  std::vector<Image> seen;
  for (int64_t i = 0; i < set.count; ++i) {
    seen.push_back(PictureOf(c, requests[i * o.samples].symbols));
  }
  GenerateOptions options;
  options.seed = SeedFrom(o.seed);
  options.sampler.temperature = o.temperature;
  options.batch = o.batch;
  options.cached = !o.no_cache;
  Progress progress(static_cast<int64_t>(requests.size()) * c.max_len, stderr,
                    {common.quiet ? Progress::Style::kQuiet : Progress::Style::kAuto, "pixel", {}});
  options.progress = [&](int64_t done, int64_t) {
    ThrowIfInterrupted();
    progress.Update(done);
  };
  Generate(model.model, requests, options);
  progress.Finish();
  GridOptions grid = o.grid;
  grid.columns = 2 + o.samples;
  WriteGrid(Rows(set, seen, requests, c), grid);
  if (common.quiet || grid.out == "-") return;
  Print("{}: {} pictures with {} completions each, seed {}\n", grid.out, set.count, o.samples,
        options.seed);
}

}  // namespace

void AddComplete(CLI::App& app, Common& common) {
  CLI::App& verb = *app.add_subcommand("complete", "hide a part of pictures and paint it anew");
  auto o = std::make_shared<Options>();
  o->grid.out = "completions.png";
  AddModelArgument(verb, o->model);
  AddDtypeOption(verb, o->dtype);
  auto* data =
      verb.add_option("--data", o->data, "fashion-mnist, mnist:DIR, cifar10:DIR or png:DIR");
  verb.add_option("--image", o->images, "PNG files")->excludes(data);
  verb.add_option("--split", o->split, "train, validation or test (test)");
  verb.add_option("--first", o->first, "number of the first picture of the split (0)");
  verb.add_option("--n", o->n, "pictures (8)")->check(CLI::Range(1, 10'000));
  verb.add_option("--samples", o->samples, "completions of each (4)")->check(CLI::Range(1, 1000));
  auto* keep = verb.add_option("--keep", o->keep, "fraction that stays visible, from the top (0.5)")
                   ->check(CLI::Range(0.0, 1.0));
  auto* rows = verb.add_option("--rows", o->rows, "rows that stay visible, from the top")
                   ->check(CLI::Range(int64_t{0}, kMany))
                   ->excludes(keep);
  verb.add_option("--hide", o->hide, "hide TOP:BOTTOM rows, or TOP:BOTTOM,LEFT:RIGHT")
      ->excludes(keep)
      ->excludes(rows);
  verb.add_option("--class", o->label, "class of a conditional model (default: the data's label)");
  verb.add_option("--seed", o->seed, "of the random numbers (default: a new one, printed)");
  verb.add_option("--temperature", o->temperature, "1 as learned, below 1 safer, 0 the likeliest")
      ->check(CLI::Range(0.0, 1e6));
  verb.add_option("--out", o->grid.out, "PNG file (completions.png); - is standard output");
  verb.add_option("--scale", o->grid.scale, "pixels a pixel (3)")->check(CLI::Range(1, 64));
  verb.add_option("--batch", o->batch, "sequences that are stepped together (32)")
      ->check(CLI::Range(1, 4096));
  verb.add_flag("--no-cache", o->no_cache, "recompute the whole sequence for every token");
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o, &common] { Run(*o, common); });
}

}  // namespace linattn::cli
