#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/steady_seconds.h"
#include "cli/console.h"
#include "cli/eval_speech.h"
#include "cli/loaded_model.h"
#include "cli/verbs.h"
#include "data/image_set.h"
#include "data/speech_set.h"
#include "runtime/score.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn eval model.safetensors --data fashion-mnist
  linattn eval model.safetensors --data cifar10:DIR --split validation --limit 500 --json
  linattn eval text.safetensors --data book.txt
  linattn eval speech.safetensors --data manifest.tsv --beam 16 --json
  linattn eval model.safetensors --data fashion-mnist --dtype int8      what short weights cost
bits_per_dim (of text: bits_per_byte) is the negative log likelihood of a sub-pixel (a byte) in bits.
Bytes are counted whatever the vocabulary, so that models of different ones compare.
Of a model of speech: its phoneme or character error rate on a manifest (lines of audio path, tab, transcript and perhaps
tab, split; or JSON lines), on wav:DIR (DIR/WORD/*.wav) or on Debian's recorded prompts (asterisk). Without a split in the
manifest a tenth is test, as in training; --split all takes everything.)";

struct Options {
  WeightType dtype = WeightType::kFloat32;
  std::string model, data, split = "test", dictionary = kDictionary;
  int64_t limit = 0, batch = 0, beam = 0;
  bool json = false;
};

// Sequences of one length, except that the last may be shorter, with their labels.
struct Examples {
  int64_t count = 0, length = 0;
  Bytes bytes;                  // the symbols, one sequence after the other,
  std::vector<int32_t> ids;     // or, of a vocabulary that is not bytes, these
  std::vector<int64_t> labels;  // [count] or empty

  int64_t size() const { return std::ssize(bytes) + std::ssize(ids); }
  std::vector<int32_t> Symbols(int64_t begin, int64_t end) const {
    if (ids.empty()) return {bytes.begin() + begin, bytes.begin() + end};
    return {ids.begin() + begin, ids.begin() + end};
  }
  void Limit(int64_t n) {
    if (n >= count) return;
    count = n;
    (ids.empty() ? bytes.resize(n * length) : ids.resize(n * length));
  }
};

Examples ImageExamples(const Options& o, const ModelConfig& c) {
  const ImageSet set = LoadImages(o.data, ParseSplit(o.split));
  Check(set.height == c.height && set.width == c.width && set.channels == c.channels, "eval",
        "the pictures must be {} x {} x {} (height, width, channels) for this model, but are {} x "
        "{} x {}",
        c.height, c.width, c.channels, set.height, set.width, set.channels);
  Examples all{set.count, set.image_size(), set.pixels, {}, {}};
  all.labels.assign(set.labels.begin(), set.labels.end());
  return all;
}

// The file cut into pieces of the model's length.
Examples TextExamples(const Options& o, const LoadedModel& model) {
  Examples all;
  all.bytes = ReadFile(o.data, "eval");
  Check(!all.bytes.empty(), "eval", "{}: the text must have at least one byte, but is empty",
        o.data);
  if (!model.vocabulary.bytes()) {
    all.ids = model.vocabulary.Encode(AsText(all.bytes));
    all.bytes.clear();
    Check(!all.ids.empty(), "eval", "{}: the text must have at least one token, but has none",
          o.data);
  }
  all.length = std::min(all.size(), model.config().max_len);
  all.count = (all.size() + all.length - 1) / all.length;
  return all;
}

// Bytes of the text that was scored; elsewhere tokens: what bits are counted by.
int64_t Units(const Examples& all, const LoadedModel& model) {
  return model.vocabulary.pieces() ? std::ssize(model.vocabulary.Decode(all.ids)) : all.size();
}

// What the bits are called, in the log of a training as here.
const char* MetricOf(const LoadedModel& model) {
  if (model.config().task == "images") return "bits_per_dim";
  return model.vocabulary.bytes() || model.vocabulary.pieces() ? "bits_per_byte" : "bits_per_token";
}

// Nats of all of them, and a line of progress as it goes.
double Score(const Options& o, const PackedModel& model, const Examples& all, Progress& progress) {
  const bool conditional = model.config().classes > 0;
  const int64_t T = all.length, batch = o.batch > 0 ? o.batch : std::max<int64_t>(1, 8192 / T);
  FullPass pass(model);
  double nats = 0, scored = 0;
  const int64_t full = all.size() / T;  // sequences of the whole length
  for (int64_t i = 0, B = 0; i < all.count; i += B) {
    ThrowIfInterrupted();
    B = i < full ? std::min(batch, full - i) : 1;
    const std::vector<int32_t> symbols = all.Symbols(i * T, std::min((i + B) * T, all.size()));
    std::vector<int64_t> labels;
    if (conditional) labels.assign(all.labels.begin() + i, all.labels.begin() + i + B);
    for (const double x : ScoreSequences(pass, symbols, labels, B)) nats += x;
    scored += static_cast<double>(symbols.size());
    progress.Update(i + B, fmt::format("{:.4f} nats/token", nats / scored));
  }
  progress.Finish();
  return nats;
}

void Run(const Options& o, const Common& common) {
  const LoadedModel model(o.model, o.dtype);
  const ModelConfig& c = model.config();
  const bool images = c.task == "images";
  Check(!o.data.empty(), "eval", "the data must be given (--data), but are not");
  CheckTask(c, "eval", {"images", "text", "speech"});
  if (c.task == "speech") {
    Check(o.batch == 0, "eval", "--batch must be left out for a model of speech");
    return EvalSpeech({o.data, o.split, o.dictionary, o.limit, o.beam, o.json, common.quiet},
                      model.model);
  }
  Check(o.beam == 0, "eval", "--beam is for a model of speech, but this one is of {}", c.task);
  Examples all = images ? ImageExamples(o, c) : TextExamples(o, model);
  Check(c.classes == 0 || !all.labels.empty(), "eval",
        "a conditional model needs labels, but {} has none", o.data);
  if (o.limit > 0) all.Limit(o.limit);
  const char* unit = images ? "images" : "pieces";
  Progress progress(all.count, stderr,
                    {common.quiet ? Progress::Style::kQuiet : Progress::Style::kAuto, unit, {}});
  const double start = SteadySeconds();
  const double nats = Score(o, model.model, all, progress);
  const double seconds = SteadySeconds() - start;
  const double per_token = nats / static_cast<double>(all.size());
  const double bits = nats / static_cast<double>(Units(all, model)) / std::numbers::ln2;
  const double rate = static_cast<double>(all.count) / seconds;
  if (o.json) {
    const nlohmann::json json = {
        {"data", o.data},        {"split", images ? o.split : ""}, {"count", all.count},
        {MetricOf(model), bits}, {"nats_per_token", per_token},    {"per_second", rate}};
    return Print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  Print("{:.4f} {}  {:.4f} nats/token  {} {} of {}{}  {:.1f} {}/s\n", bits, MetricOf(model),
        per_token, all.count, unit, o.data, images ? " (" + o.split + ")" : "", rate, unit);
}

}  // namespace

void AddEval(CLI::App& app, Common& common) {
  CLI::App& verb =
      *app.add_subcommand("eval", "bits/dim (of speech: the error rate) of a model on a data set");
  auto o = std::make_shared<Options>();
  AddModelArgument(verb, o->model);
  AddDtypeOption(verb, o->dtype);
  verb.add_option("--data", o->data,
                  "fashion-mnist, mnist:DIR, cifar10:DIR or png:DIR; for a model of text, a file; "
                  "of speech, a manifest, wav:DIR or asterisk");
  verb.add_option("--split", o->split, "train, validation or test (test); of speech also all");
  verb.add_option("--limit", o->limit, "only the first N sequences")
      ->check(CLI::Range(int64_t{1}, kMany));
  verb.add_option("--batch", o->batch, "sequences a pass (about 8192 tokens)")
      ->check(CLI::Range(int64_t{1}, kMany));
  verb.add_option("--beam", o->beam, "of speech: prefixes that the search keeps (greedy)")
      ->check(CLI::Range(1, 10000));
  verb.add_option("--dictionary", o->dictionary,
                  "of speech in phonemes: the pronunciations (pocketsphinx-en-us's)");
  verb.add_flag("--json", o->json, "one line of JSON");
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o, &common] { Run(*o, common); });
}

}  // namespace linattn::cli
