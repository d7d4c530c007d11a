#include "runtime/generate.h"

#include <omp.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "cli/console.h"
#include "cli/loaded_model.h"
#include "cli/pictures.h"
#include "cli/verbs.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn generate model.safetensors                        16 pictures into samples.png
  linattn generate model.safetensors --n 64 --columns 8 --class dress --out dresses.png
  linattn generate model.safetensors --seed 7 --temperature 0.9
  linattn generate text.safetensors --prompt "Once upon" --tokens 500 --top-p 0.95
The same seed gives the same output whatever --batch and --threads are.)";

struct Options {
  std::string model, seed, label, prompt, prompt_file;
  GridOptions grid;
  int64_t n = 16, tokens = 0;
  double temperature = 1, top_p = 1;
  int64_t top_k = 0, batch = 32;
  bool no_cache = false;
};

GenerateOptions MakeOptions(const Options& o, uint64_t seed) {
  GenerateOptions options;
  options.seed = seed;
  options.sampler.temperature = o.temperature;
  options.sampler.top_k = o.top_k;
  options.sampler.top_p = o.top_p;
  options.batch = o.batch;
  options.cached = !o.no_cache;
  return options;
}

void GenerateImages(const Options& o, const LoadedModel& model, const Common& common) {
  Check(o.prompt.empty() && o.prompt_file.empty() && o.tokens == 0, "generate",
        "--prompt and --tokens must be left out for a model of images (see: linattn complete)");
  const ModelConfig& c = model.config();
  Check(c.head == "categorical" || (o.top_k == 0 && o.top_p == 1), "generate",
        "--top-k and --top-p choose among symbols: they must be left out for the head {}", c.head);
  const uint64_t seed = SeedFrom(o.seed);
  const std::string out = o.grid.out.empty() ? "samples.png" : o.grid.out;
  std::vector<Request> requests(o.n);
  for (int64_t i = 0; i < o.n; ++i) {
    requests[i].symbols.assign(c.max_len, kUnknown);
    requests[i].stream = static_cast<uint64_t>(i);
    // Without --class a conditional model shows its classes in turn.
    requests[i].label = !o.label.empty() ? model.ClassNamed(o.label)
                        : c.classes      ? i % c.classes
                                         : 0;
  }
  GenerateOptions options = MakeOptions(o, seed);
  Progress progress(o.n * c.max_len, stderr,
                    {common.quiet ? Progress::Style::kQuiet : Progress::Style::kAuto, "pixel", {}});
  options.progress = [&](int64_t done, int64_t) {
    ThrowIfInterrupted();
    progress.Update(done);
  };
  const auto start = std::chrono::steady_clock::now();
  Generate(model.model, requests, options);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  progress.Finish();
  std::vector<Image> pictures;
  for (const Request& request : requests) pictures.push_back(PictureOf(c, request.symbols));
  GridOptions grid = o.grid;
  grid.out = out;
  WriteGrid(pictures, grid);
  if (common.quiet || out == "-") return;
  Print("{}: {} images of {} x {}, seed {}, {:.2f} s, {:.2f} images/s\n", out, o.n, c.height,
        c.width, seed, seconds.count(), static_cast<double>(o.n) / seconds.count());
}

std::string Prompt(const Options& o) {
  Check(o.prompt.empty() || o.prompt_file.empty(), "generate",
        "--prompt and --prompt-file must not be given both");
  if (o.prompt_file.empty()) return o.prompt;
  return std::string(AsText(ReadFile(o.prompt_file, "generate")));
}

// New bytes go to standard output as they come, or to a file at the end.
void GenerateText(const Options& o, const LoadedModel& model, const Common& common) {
  const ModelConfig& c = model.config();
  Check(c.vocab == 256, "generate", "text needs a vocabulary of 256 bytes, but the model has {}",
        c.vocab);
  const std::string prompt = Prompt(o);
  const int64_t length = static_cast<int64_t>(prompt.size());
  Check(length < c.max_len, "generate",
        "the prompt must be shorter than the model's maximum of {} tokens, but has {}", c.max_len,
        length);
  const int64_t tokens = o.tokens > 0 ? o.tokens : std::min<int64_t>(256, c.max_len - length);
  Check(length + tokens <= c.max_len, "generate",
        "prompt and --tokens must be at most the model's maximum of {} tokens, but are {}",
        c.max_len, length + tokens);
  const uint64_t seed = SeedFrom(o.seed);
  if (o.seed.empty() && !common.quiet) fmt::print(stderr, "seed {}\n", seed);
  Request request;
  if (!o.label.empty()) request.label = model.ClassNamed(o.label);
  for (const char byte : prompt) request.symbols.push_back(static_cast<uint8_t>(byte));
  request.symbols.resize(length + tokens, kUnknown);
  std::string made;
  GenerateOptions options = MakeOptions(o, seed);
  options.progress = [](int64_t, int64_t) { ThrowIfInterrupted(); };
  options.sampled = [&](size_t, int32_t symbol) {
    made += static_cast<char>(symbol);
    if (o.grid.out.empty() || o.grid.out == "-")
      Write(std::string_view(made).substr(made.size() - 1));
  };
  Generate(model.model, {&request, 1}, options);
  if (!o.grid.out.empty() && o.grid.out != "-") WriteFileAtomic(o.grid.out, std::string_view(made));
}

void Run(const Options& o, const Common& common) {
  CheckOut(o.grid.out, "generate");
  const LoadedModel model(o.model);
  if (model.config().task == "text") return GenerateText(o, model, common);
  GenerateImages(o, model, common);
}

}  // namespace

void AddGenerate(CLI::App& app, Common& common) {
  CLI::App& verb = *app.add_subcommand("generate", "paint pictures or write text, token by token");
  auto o = std::make_shared<Options>();
  AddModelArgument(verb, o->model);
  verb.add_option("--out", o->grid.out,
                  "where to: PNG (default samples.png) or text (default standard output); - is "
                  "standard output");
  verb.add_option("--n", o->n, "pictures (16)")->check(CLI::Range(1, 100'000));
  verb.add_option("--columns", o->grid.columns, "of the grid")->check(CLI::Range(1, 1000));
  verb.add_option("--scale", o->grid.scale, "pixels a pixel (3)")->check(CLI::Range(1, 64));
  verb.add_option("--class", o->label,
                  "class of a conditional model, by number or name "
                  "(default: each in turn)");
  verb.add_option("--seed", o->seed, "of the random numbers (default: a new one, printed)");
  verb.add_option("--temperature", o->temperature, "1 as learned, below 1 safer, 0 the likeliest")
      ->check(CLI::Range(0.0, 1e6));
  verb.add_option("--prompt", o->prompt, "text to continue; may be empty");
  verb.add_option("--prompt-file", o->prompt_file, "file with text to continue; may be empty");
  verb.add_option("--tokens", o->tokens, "bytes of text to write (256)")
      ->check(CLI::Range(int64_t{1}, kMany));
  verb.add_option("--top-k", o->top_k, "only the k likeliest symbols")
      ->check(CLI::Range(int64_t{0}, kMany));
  verb.add_option("--top-p", o->top_p, "only the likeliest symbols that make up mass p");
  verb.add_option("--batch", o->batch, "pictures that are painted together (32)")
      ->check(CLI::Range(1, 4096));
  verb.add_flag("--no-cache", o->no_cache,
                "recompute the whole sequence for every token, as a baseline");
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o, &common] { Run(*o, common); });
}

}  // namespace linattn::cli
