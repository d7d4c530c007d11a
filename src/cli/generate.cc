#include "runtime/generate.h"

#include <omp.h>

#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/steady_seconds.h"
#include "cli/console.h"
#include "cli/generate_text.h"
#include "cli/loaded_model.h"
#include "cli/pictures.h"
#include "cli/verbs.h"
#include "data/text_stream.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn generate model.safetensors                        16 pictures into samples.png
  linattn generate model.safetensors --n 64 --columns 8 --class dress --out dresses.png
  linattn generate model.safetensors --seed 7 --temperature 0.9
  linattn generate text.safetensors --prompt "Once upon" --tokens 500 --top-p 0.95
  linattn generate text.safetensors - <book.txt --tokens 0 --save-state book.state
  linattn generate text.safetensors --load-state book.state --prompt "And then" --stop "."
  linattn generate text.safetensors --prompt-file book.txt --prompt-cache book.state    reads it once
  linattn generate text.safetensors --forever --timing 100000 >/dev/null
  linattn generate converted.safetensors --prompt "415 902 17"     token ids, where nobody knows them
The same seed gives the same output whatever --batch and --threads are, and wherever a text is saved
and loaded on its way. Standard output shows what is no UTF-8 as U+FFFD, and a character that --save-state
cuts when the text goes on; --out keeps all bytes.)";

struct Options {
  WeightType dtype = WeightType::kFloat32;
  std::string model, input, seed, label;
  GridOptions grid;
  TextOptions text;
  int64_t n = 16;
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

constexpr const char* kPictureGroup = "Pictures";
constexpr const char* kTextGroup = "Text";

// Throws Error naming an option of that group if one is given.
void CheckNoneOf(const CLI::App& verb, const std::string& group, const std::string& task) {
  const auto given = verb.get_options([&](const CLI::Option* option) {
    return option->get_group() == group && option->count() > 0;
  });
  if (given.empty()) return;
  Fail("generate", "{} must be left out for a model of {}{}",
       given[0]->get_positional() ? "a prompt" : given[0]->get_name(), task,
       task == "images" ? " (to paint the rest of pictures see: linattn complete)" : "");
}

void GenerateImages(const Options& o, const LoadedModel& model, const Common& common) {
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
  const double start = SteadySeconds();
  Generate(model.model, requests, options);
  const double seconds = SteadySeconds() - start;
  progress.Finish();
  std::vector<Image> pictures;
  for (const Request& request : requests) pictures.push_back(PictureOf(c, request.symbols));
  GridOptions grid = o.grid;
  grid.out = out;
  WriteGrid(pictures, grid);
  if (common.quiet || out == "-") return;
  Print("{}: {} images of {} x {}, seed {}, {:.2f} s, {:.2f} images/s\n", out, o.n, c.height,
        c.width, seed, seconds, static_cast<double>(o.n) / seconds);
}

void GenerateText(const Options& o, const LoadedModel& model, const Common& common) {
  TextOptions text = o.text;
  text.out = o.grid.out, text.seed = o.seed;
  text.sampler = MakeOptions(o, 0).sampler;
  text.cached = !o.no_cache, text.quiet = common.quiet;
  if (!o.input.empty()) {
    Check(text.prompt_file.empty(), "generate",
          "the prompt must be given once: by --prompt, --prompt-file or -");
    text.prompt_file = o.input;
  }
  if (!o.label.empty()) text.label = model.ClassNamed(o.label);
  GenerateText(text, model);
}

// All that can be refused before any work.
void CheckOptions(const Options& o) {
  CheckOut(o.grid.out, "generate");
  CheckOut(o.text.save_state, "generate", "--save-state");
  CheckOut(o.text.prompt_cache, "generate", "--prompt-cache");
  CheckSampler(MakeOptions(o, 0).sampler);
  StopStrings stops(o.text.stops);
}

void Run(const CLI::App& verb, const Options& o, const Common& common) {
  CheckOptions(o);
  const LoadedModel model(o.model, o.dtype);
  const std::string& task = model.config().task;
  CheckTask(model.config(), "generate", {"images", "text"});
  CheckNoneOf(verb, task == "text" ? kPictureGroup : kTextGroup, task);
  if (task == "text") return GenerateText(o, model, common);
  GenerateImages(o, model, common);
}

void AddTextOptions(CLI::App& verb, Options& o) {
  TextOptions& t = o.text;
  const auto add = [&](const char* name, auto& value, const char* what) {
    return verb.add_option(name, value, what)->group(kTextGroup);
  };
  add("input", o.input, "- : the prompt comes from standard input")->check(CLI::IsMember({"-"}));
  add("--prompt", t.prompt, "text (or token ids) to continue; may be empty");
  add("--prompt-file", t.prompt_file, "file with text to continue; may be empty");
  add("--tokens", t.tokens, "tokens (of most models bytes) to write (256); 0: only read the prompt")
      ->check(CLI::Range(int64_t{0}, kMany));
  verb.add_flag("--forever", t.forever, "write until Ctrl-C, or until the model's maximum")
      ->group(kTextGroup)
      ->excludes("--tokens");
  add("--stop", t.stops, "end before this string; may be given several times")
      ->allow_extra_args(false);
  add("--repetition-penalty", t.repetition_penalty,
      "above 1: what has come lately is less likely (1)")
      ->check(CLI::Range(1e-3, 1e9));
  add("--repetition-window", t.repetition_window, "how many tokens are lately (64)")
      ->check(CLI::Range(0, 1 << 20));
  add("--save-state", t.save_state,
      "file for what the model remembers at the end, the stop string too; of a fixed size");
  add("--load-state", t.load_state, "go on from such a file; the prompt comes behind it");
  add("--prompt-cache", t.prompt_cache,
      "file that saves a prompt's evaluation: used if it is of this prompt or its beginning, else "
      "written");
  add("--timing", t.timing, "a line of JSON on standard error every so many tokens")
      ->check(CLI::Range(int64_t{0}, kMany));
}

void AddPictureOptions(CLI::App& verb, Options& o) {
  const auto add = [&](const char* name, auto& value, const char* what) {
    return verb.add_option(name, value, what)->group(kPictureGroup);
  };
  add("--n", o.n, "pictures (16)")->check(CLI::Range(1, 100'000));
  add("--columns", o.grid.columns, "of the grid")->check(CLI::Range(1, 1000));
  add("--scale", o.grid.scale, "pixels a pixel (3)")->check(CLI::Range(1, 64));
  add("--batch", o.batch, "pictures that are painted together (32)")->check(CLI::Range(1, 4096));
}

}  // namespace

void AddGenerate(CLI::App& app, Common& common) {
  CLI::App& verb = *app.add_subcommand("generate", "paint pictures or write text, token by token");
  auto o = std::make_shared<Options>();
  AddModelArgument(verb, o->model);
  AddDtypeOption(verb, o->dtype);
  verb.add_option("--out", o->grid.out,
                  "where to: PNG (default samples.png) or text (default standard output); - is "
                  "standard output");
  verb.add_option("--class", o->label,
                  "class of a conditional model, by number or name "
                  "(default: each in turn)");
  verb.add_option("--seed", o->seed, "of the random numbers (default: a new one, printed)");
  verb.add_option("--temperature", o->temperature, "1 as learned, below 1 safer, 0 the likeliest")
      ->check(CLI::Range(0.0, 1e6));
  verb.add_option("--top-k", o->top_k, "only the k likeliest symbols")
      ->check(CLI::Range(int64_t{0}, kMany));
  verb.add_option("--top-p", o->top_p, "only the likeliest symbols that make up mass p");
  verb.add_flag("--no-cache", o->no_cache,
                "recompute the whole sequence for every token, as a baseline");
  AddPictureOptions(verb, *o);
  AddTextOptions(verb, *o);
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o, &verb, &common] { Run(verb, *o, common); });
}

}  // namespace linattn::cli
