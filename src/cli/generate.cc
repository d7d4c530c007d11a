#include "runtime/generate.h"

#include <omp.h>

#include <charconv>
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
  linattn generate converted.safetensors --prompt "415 902 17"     token ids, where they are no bytes
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

// A text is bytes with a vocabulary of 256, and else the ids of somebody's tokenizer in decimal.
bool IsBytes(const ModelConfig& c) { return c.vocab == 256; }

std::vector<int32_t> SymbolsOf(const std::string& text, const ModelConfig& c) {
  std::vector<int32_t> symbols;
  if (IsBytes(c)) {
    for (const char byte : text) symbols.push_back(static_cast<uint8_t>(byte));
    return symbols;
  }
  constexpr const char* kBetween = " ,\t\r\n";
  for (size_t at = text.find_first_not_of(kBetween); at != text.npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(&text[at], text.data() + end, id);
    const bool whole = error == std::errc() && stop == text.data() + end;
    Check(whole && id >= 0 && id < c.vocab, "generate",
          "the prompt must be token ids from 0 to {} (the model's vocabulary is not bytes, but "
          "that of another program's tokenizer), but has '{}'",
          c.vocab - 1, Printable(text.substr(at, end - at)));
    symbols.push_back(id);
    at = text.find_first_not_of(kBetween, end);
  }
  return symbols;
}

// Bytes as they are, ids with a space between.
std::string TextOf(int32_t symbol, bool first, const ModelConfig& c) {
  if (IsBytes(c)) return std::string(1, static_cast<char>(symbol));
  return fmt::format("{}{}", first ? "" : " ", symbol);
}

// The prompt and what is to come after it.
Request MakeRequest(const Options& o, const LoadedModel& model) {
  const ModelConfig& c = model.config();
  Request request;
  request.symbols = SymbolsOf(Prompt(o), c);
  const int64_t length = static_cast<int64_t>(request.symbols.size());
  Check(length < c.max_len, "generate",
        "the prompt must be shorter than the model's maximum of {} tokens, but has {}", c.max_len,
        length);
  const int64_t tokens = o.tokens > 0 ? o.tokens : std::min<int64_t>(256, c.max_len - length);
  Check(length + tokens <= c.max_len, "generate",
        "prompt and --tokens must be at most the model's maximum of {} tokens, but are {}",
        c.max_len, length + tokens);
  if (!o.label.empty()) request.label = model.ClassNamed(o.label);
  request.symbols.resize(length + tokens, kUnknown);
  return request;
}

// New symbols go to standard output as they come, or to a file at the end.
void GenerateText(const Options& o, const LoadedModel& model, const Common& common) {
  const ModelConfig& c = model.config();
  Request request = MakeRequest(o, model);
  const bool to_file = !o.grid.out.empty() && o.grid.out != "-";
  const uint64_t seed = SeedFrom(o.seed);
  if (o.seed.empty() && !common.quiet) fmt::print(stderr, "seed {}\n", seed);
  std::string made;
  GenerateOptions options = MakeOptions(o, seed);
  options.progress = [](int64_t, int64_t) { ThrowIfInterrupted(); };
  options.sampled = [&](size_t, int32_t symbol) {
    const std::string text = TextOf(symbol, made.empty(), c);
    made += text;
    if (!to_file) Write(text);
  };
  Generate(model.model, {&request, 1}, options);
  if (!IsBytes(c)) made += "\n";
  if (to_file) return WriteFileAtomic(o.grid.out, std::string_view(made));
  if (!IsBytes(c)) Write(std::string_view("\n"));
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
  verb.add_option("--prompt", o->prompt, "text (or token ids) to continue; may be empty");
  verb.add_option("--prompt-file", o->prompt_file, "file with text to continue; may be empty");
  verb.add_option("--tokens", o->tokens, "bytes of text (or token ids) to write (256)")
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
