#include "cli/loaded_model.h"

#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "base/error.h"
#include "model/model_file.h"

namespace linattn::cli {
namespace {

// Whole of `text` as a number; false if it is none.
template <class T>
bool ParseNumber(const std::string& text, T& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

}  // namespace

ModelFile OpenModel(const std::string& path) {
  Check(!path.empty(), "model",
        "a model file must be given (linattn VERB MODEL, or --model MODEL), but is not");
  return LoadModel(path);
}

LoadedModel::LoadedModel(const std::string& path, WeightType type)
    : LoadedModel(OpenModel(path), type) {}

LoadedModel::LoadedModel(const ModelFile& file, WeightType type)
    : model(file.config, file.tensors, type), vocabulary(file.config.vocab, file.vocabulary) {}

int64_t LoadedModel::ClassNamed(const std::string& text) const {
  const int64_t classes = config().classes;
  Check(classes > 0, "class", "the model must be conditional to take a class, but has no classes");
  const std::vector<std::string>& names = config().class_names;
  int64_t number = -1;
  if (ParseNumber(text, number) && number >= 0 && number < classes) return number;
  for (size_t i = 0; i < names.size(); ++i) {
    if (strcasecmp(names[i].c_str(), text.c_str()) == 0) return static_cast<int64_t>(i);
  }
  if (names.empty()) {
    Fail("class", "the class must be a number from 0 to {}, but is '{}'", classes - 1, text);
  }
  Fail("class", "the class must be a number from 0 to {} or one of {}, but is '{}'", classes - 1,
       fmt::join(names, ", "), text);
}

void CheckTask(const ModelConfig& config, const std::string& verb,
               const std::vector<std::string>& tasks) {
  if (std::find(tasks.begin(), tasks.end(), config.task) != tasks.end()) return;
  const char* fits = config.task == "speech"                            ? "transcribe"
                     : config.task == "images" || config.task == "text" ? "generate"
                                                                        : "compare";
  Fail(verb, "the model must be one of {}, but is one of {} (see: linattn {})",
       fmt::join(tasks, " or "), config.task, fits);
}

CLI::Option* AddModelArgument(CLI::App& app, std::string& path) {
  return app.add_option("model,--model", path, "model file (safetensors)")->type_name("MODEL");
}

CLI::Option* AddDtypeOption(CLI::App& app, WeightType& type) {
  return app
      .add_option_function<std::string>(
          "--dtype", [&type](const std::string& name) { type = ParseWeightType(name); },
          "weights in f32, bf16 (half the memory, faster) or int8 (a quarter, fastest); sums stay "
          "float32 (f32)")
      ->type_name("TYPE");
}

uint64_t SeedFrom(const std::string& text) {
  if (text.empty()) return std::random_device()();
  uint64_t seed = 0;
  Check(ParseNumber(text, seed), "seed", "must be a number from 0 to 2^64-1, but is '{}'", text);
  return seed;
}

}  // namespace linattn::cli
