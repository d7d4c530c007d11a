#include "bench/decode_bench.h"

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/layer.h"
#include "model/model_file.h"
#include "runtime/full_pass.h"
#include "runtime/session.h"
#include "runtime/symbol_sampler.h"

namespace linattn::bench {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn bench decode                                          cifar10, linear, batch 1
  linattn bench decode --batch 1,64 --dtype f32,bf16,int8 --threads 2 --json
  linattn bench decode --mixer softmax --dtype bf16
  linattn bench decode --model model.safetensors --batch 16
  linattn bench decode --model fashion-small --length 1000000  are late steps as fast as early ones?
MODEL is a file, or mnist, cifar10 or fashion-small with random weights. Times are of whole steps: one token of every
sequence through the model, and its sampling. seconds_per_sequence is the time in which a batch of whole sequences is
made. Mixers with a state of fixed size: steps at the beginning and at the end stand for all ("flatness" is their
ratio). Mixers that keep their tokens: steps at several positions, integrated over the length ("integrated").
fraction_of_peak is the least time that the machine needs over the measured one: operations at the peak of the dtype
(mixers': float32), or weights, states and caches at the bandwidth of the level of memory that holds them, whichever
is more, which is "bound": compute, L2, L3 or memory. Peaks are measured beside it ("machine").)";

constexpr const char* kNames[] = {"mnist", "cifar10", "fashion-small"};

bool IsNamed(const std::string& model) {
  return std::find(std::begin(kNames), std::end(kNames), model) != std::end(kNames);
}

// Symbols of no meaning.
int32_t SymbolAt(const ModelConfig& c, int64_t t, int64_t slot) {
  return static_cast<int32_t>((t * 37 + slot * 11 + 5) % c.vocab);
}

// What is timed: sequences that grow together.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void MoveTo(int64_t position) = 0;  // every sequence holds so many tokens
  virtual double Step() = 0;                  // returns the seconds of it that were sampling
};

class CachedDecoder : public Decoder {
 public:
  CachedDecoder(const PackedModel& model, const DecodeSetting& s)
      : session_(model, s.batch, s.length), sample_(model.config(), {}), next_(s.batch) {
    for (int64_t i = 0; i < s.batch; ++i) slots_.push_back(i);
  }

  void MoveTo(int64_t position) override {
    const ModelConfig& c = session_.model().config();
    int64_t from = session_.length(0);
    if (from > position) session_.Reset(0), from = 0;
    // In runs, so that the working memory stays small.
    for (constexpr int64_t kRun = 1024; from < position; from = session_.length(0)) {
      std::vector<int32_t> tokens;
      for (int64_t t = from; t < std::min(position, from + kRun); ++t)
        tokens.push_back(t == 0 ? static_cast<int32_t>(c.start_token(0)) : SymbolAt(c, t, 0));
      session_.Prefill(0, tokens);
    }
    for (size_t i = 1; i < slots_.size(); ++i) session_.Copy(0, slots_[i]);
    for (size_t i = 0; i < slots_.size(); ++i)
      next_[i] =
          position == 0 ? static_cast<int32_t>(c.start_token(0)) : SymbolAt(c, position, slots_[i]);
  }

  double Step() override {
    session_.Step(slots_, next_);
    return SecondsOf([this] {
      for (size_t i = 0; i < slots_.size(); ++i)
        next_[i] = sample_(session_.outputs(slots_[i]), session_.length(slots_[i]) - 1, random_);
    });
  }

 private:
  Session session_;
  SymbolSampler sample_;
  Random random_{1, 1};
  std::vector<int64_t> slots_;
  std::vector<int32_t> next_;
};

// Reads the whole prefix for every token.
class UncachedDecoder : public Decoder {
 public:
  UncachedDecoder(const PackedModel& model, int64_t batch)
      : pass_(model), sample_(model.config(), {}), batch_(batch) {}

  void MoveTo(int64_t position) override { position_ = position; }

  double Step() override {
    const ModelConfig& c = pass_.model().config();
    tokens_.clear();
    for (int64_t b = 0; b < batch_; ++b)
      for (int64_t t = 0; t <= position_; ++t)
        tokens_.push_back(t == 0 ? static_cast<int32_t>(c.start_token(0)) : SymbolAt(c, t, b));
    const auto outputs = pass_.Run(tokens_, batch_, FullPass::Positions::kLast);
    const size_t width = outputs.size() / static_cast<size_t>(batch_);
    return SecondsOf([&] {
      for (int64_t b = 0; b < batch_; ++b)
        sample_(outputs.subspan(b * width, width), position_, random_);
    });
  }

 private:
  FullPass pass_;
  SymbolSampler sample_;
  Random random_{1, 1};
  int64_t batch_, position_ = 0;
  std::vector<int32_t> tokens_;
};

bool IsMatrix(const ParameterSpec& spec) {
  return spec.shape.size() == 2 && spec.trained && spec.name.find("embed") == std::string::npos &&
         spec.name.find("position") == std::string::npos;
}

double MatrixElements(const ModelConfig& c) {
  double elements = 0;
  for (const ParameterSpec& spec : Parameters(c))
    if (IsMatrix(spec)) elements += static_cast<double>(ElementsOf(spec));
  if (c.tied) elements += static_cast<double>(c.vocab * c.dim);
  return elements;
}

bool AllStates(const PackedModel& model) {
  for (int64_t i = 0; i < model.config().layers(); ++i)
    if (model.mixer(i).family != Family::kState) return false;
  return true;
}

// Mixer::flops counts lsh with its default options.
double LshShare(const Mixer& mixer, const ModelConfig& c) {
  const LshOptions usual;
  return mixer.name != "lsh" ? 1
                             : static_cast<double>(c.lsh_rounds * c.lsh_chunk) /
                                   static_cast<double>(usual.rounds * usual.chunk);
}

// Of one mixer, for the token behind `position` others of one sequence.
Work MixerWork(const PackedModel& model, int64_t layer, int64_t position) {
  const ModelConfig& c = model.config();
  const Mixer& mixer = model.mixer(layer);
  MixerDims dims = StateDimsOf(c, layer);
  const auto flops = [&](int64_t tokens) {
    dims.B = 1, dims.T = dims.S = tokens;
    return mixer.flops(dims, true);
  };
  Work work;
  work.f32 = (flops(position + 1) - flops(position)) * LshShare(mixer, c);
  if (mixer.family == Family::kState) {
    work.state_footprint = 4.0 * static_cast<double>(StateFloats(c, layer, 0));
    work.state_bytes = 2 * work.state_footprint;
  } else {  // a number read is a multiplication and an addition
    const double grouped = static_cast<double>(dims.HV) / static_cast<double>(dims.H);
    work.state_bytes = work.f32 / 2 * grouped * (c.cache_dtype == "bf16" ? 2 : 4);
    work.state_footprint = work.state_bytes;
  }
  return work;
}

Work StepWork(const PackedModel& model, const DecodeSetting& s, int64_t position) {
  const double elements = MatrixElements(model.config());
  const double tokens = static_cast<double>(s.batch * (s.cached ? 1 : position + 1));
  Work work;
  const double flops = 2 * elements * tokens;
  switch (model.type()) {
    case WeightType::kFloat32:
      work.f32 = flops, work.weight_bytes = 4 * elements;
      break;
    case WeightType::kBFloat16:
      work.bf16 = flops, work.weight_bytes = 2 * elements;
      break;
    case WeightType::kInt8:
      work.int8 = flops, work.weight_bytes = elements;
      break;
  }
  for (int64_t layer = 0; layer < model.config().layers(); ++layer) {
    if (s.cached) {
      Work mixer = MixerWork(model, layer, position);
      for (double* x : {&mixer.f32, &mixer.state_bytes, &mixer.state_footprint})
        *x *= static_cast<double>(s.batch);
      work += mixer;
    } else {
      MixerDims dims = StateDimsOf(model.config(), layer);
      dims.B = s.batch, dims.T = dims.S = position + 1;
      const Mixer& mixer = model.mixer(layer);
      work.f32 += mixer.flops(dims, true) * LshShare(mixer, model.config());
    }
  }
  return work;
}

double AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (double kib = 0; file >> key >> kib >> unit;)
    if (key == "MemAvailable:") return kib * 1024;
  return 1e18;
}

double BytesOf(const PackedModel& model, const DecodeSetting& s) {
  if (!s.cached) return 0;  // the passes' memory is small
  return static_cast<double>(StateBytes(model.config(), s.length) * s.batch);
}

// Steps at one place: few where the cost grows, so that they stay there.
int64_t MostSteps(bool flat, int64_t length) {
  return std::max<int64_t>(1, std::min<int64_t>(flat ? 1024 : 32, length / 2));
}

// Where steps are timed: for states the beginning and the end; for what grows more of them, dense
// where caches move from one level of memory to the next.
std::vector<int64_t> PlacesOf(bool flat, const DecodeSetting& s) {
  std::vector<double> shares = {0, 1};
  if (!flat) shares = {0, 1.0 / 16, 1.0 / 4, 5.0 / 8, 1};
  if (!flat && s.cached && s.batch <= 4)
    shares = {0, 1.0 / 16, 1.0 / 8, 1.0 / 4, 1.0 / 2, 3.0 / 4, 1};
  std::vector<int64_t> places;
  for (const double share : shares) {
    const int64_t last = s.cached ? s.length - MostSteps(flat, s.length) : s.length - 1;
    const auto place = static_cast<int64_t>(share * static_cast<double>(last));
    if (places.empty() || place > places.back()) places.push_back(place);
  }
  return places;
}

// The integral of y over [0, length), y being linear between the places and flat outside.
double Integral(const std::vector<DecodeTiming::Place>& places, int64_t length,
                const std::function<double(const DecodeTiming::Place&)>& y) {
  double sum = static_cast<double>(places[0].position) * y(places[0]);
  for (size_t i = 1; i < places.size(); ++i)
    sum += static_cast<double>(places[i].position - places[i - 1].position) *
           (y(places[i]) + y(places[i - 1])) / 2;
  return sum + static_cast<double>(length - places.back().position) * y(places.back());
}

}  // namespace

double DecodeTiming::spread() const {
  double spread = 0;
  for (const Place& place : places) spread = std::max(spread, place.step.spread);
  return spread;
}

double DecodeTiming::flatness() const {
  return places.back().step.median_s / places.front().step.median_s;
}

namespace {

// Times steps where the decoder stands; returns the share of sampling.
double TimePlace(Decoder& decoder, double seconds, int64_t most, DecodeTiming::Place& place,
                 const std::function<void()>& check) {
  constexpr int64_t kWarmUp = 2, kLeast = 3;
  std::vector<double> times;
  double sum = 0, sampling = 0;
  for (int64_t i = 0; i < most; ++i) {
    check();
    double own = 0;
    const double time = SecondsOf([&] { own = decoder.Step(); });
    if (i < std::min(kWarmUp, most / 2)) continue;
    times.push_back(time), sum += time, sampling += own;
    if (sum > seconds && static_cast<int64_t>(times.size()) >= kLeast) break;
  }
  place.step = Summarise(std::move(times));
  return sampling / sum;
}

std::unique_ptr<Decoder> MakeDecoder(const PackedModel& model, const DecodeSetting& s) {
  if (s.cached) return std::make_unique<CachedDecoder>(model, s);
  return std::make_unique<UncachedDecoder>(model, s.batch);
}

}  // namespace

bool Fits(const PackedModel& model, const DecodeSetting& s) {
  return BytesOf(model, s) < 0.9 * AvailableBytes();
}

DecodeTiming MeasureDecode(const PackedModel& model, const DecodeSetting& s,
                           const std::function<void()>& check) {
  DecodeTiming timing;
  timing.length = s.length, timing.batch = s.batch;
  timing.state_bytes = static_cast<double>(StateBytes(model.config(), s.length));
  Check(Fits(model, s), "bench",
        "the memory of {} sequences must fit, but takes {:.1f} GB of {:.1f} GB that are free",
        s.batch, BytesOf(model, s) / 1e9, AvailableBytes() / 1e9);
  const bool flat = s.cached && AllStates(model);
  const auto decoder = MakeDecoder(model, s);
  const std::vector<int64_t> places = PlacesOf(flat, s);
  const int64_t most = s.cached ? MostSteps(flat, s.length) : s.seconds < 1 ? 2 : 3;
  for (const int64_t position : places) {
    decoder->MoveTo(position);
    DecodeTiming::Place place{.position = position, .step = {}, .roof_s = 0};
    const double budget = s.seconds / static_cast<double>(places.size());
    timing.sampling = TimePlace(*decoder, budget, most, place, check);
    const Work work = StepWork(model, s, position);
    const Roof roof = RoofOf(ThisMachine(), work);
    place.roof_s = roof.seconds;
    if (2 * position <= s.length) timing.bound = roof.bound;  // in the middle
    timing.weight_bytes = work.weight_bytes;
    timing.places.push_back(place);
  }
  timing.integrated = !flat && timing.places.size() > 1;
  timing.seconds = Integral(timing.places, s.length, [](auto& p) { return p.step.median_s; });
  timing.roof_seconds = Integral(timing.places, s.length, [](auto& p) { return p.roof_s; });
  const double flops = Integral(timing.places, s.length, [&](auto& p) {
    const Work work = StepWork(model, s, p.position);
    return work.f32 + work.bf16 + work.int8;
  });
  timing.gflops = flops / timing.seconds / 1e9;
  return timing;
}

ModelConfig BenchConfig(const std::string& model, const std::string& mixer, WeightType weights,
                        int64_t length) {
  ModelConfig config = NamedConfig(model, mixer);
  while (config.max_len < length) {
    config.height *= 2, config.width *= 2;
    config.max_len = config.height * config.width * config.channels;
  }
  config.cache_dtype = weights == WeightType::kFloat32 ? "f32" : "bf16";
  return config;
}

PackedModel RandomModel(const ModelConfig& config, WeightType weights) {
  return PackedModel(config, RandomTensors(config, 1), weights);
}

namespace {

PackedModel MakeModel(const DecodeOptions& o, WeightType weights) {
  if (IsNamed(o.model))
    return RandomModel(BenchConfig(o.model, o.mixer, weights, o.length), weights);
  const ModelFile file = LoadModel(o.model);
  return PackedModel(file.config, file.tensors, weights);
}

nlohmann::ordered_json RowOf(const DecodeOptions& o, const PackedModel& model,
                             const DecodeTiming& t) {
  const ModelConfig& c = model.config();
  nlohmann::ordered_json places = nlohmann::ordered_json::array();
  for (const auto& place : t.places)
    places.push_back({{"position", place.position},
                      {"us_per_step", place.step.median_s * 1e6},
                      {"spread", place.step.spread},
                      {"steps", place.step.rounds}});
  const double steps = static_cast<double>(t.length);
  return {
      {"bench", "decode"},
      {"model", o.model},
      {"mixer", c.mixers[0]},
      {"batch", t.batch},
      {"dtype", WeightTypeName(model.type())},
      {"threads", omp_get_max_threads()},
      {"length", t.length},
      {"seconds_per_sequence", t.seconds},
      {"sequences_per_second", t.sequences_per_second()},
      {"tokens_per_second", t.sequences_per_second() * steps},
      {"us_per_step", t.seconds / steps * 1e6},
      {"spread", t.spread()},
      {"gflops", t.gflops},
      {"fraction_of_peak", t.roof_seconds / t.seconds},
      {"bound", t.bound},
      {"integrated", t.integrated},
      {"flatness", t.integrated ? nlohmann::ordered_json() : nlohmann::ordered_json(t.flatness())},
      {"sampling_fraction", t.sampling},
      {"weight_bytes", t.weight_bytes},
      {"state_bytes_per_sequence", t.state_bytes},
      {"cache_dtype", c.cache_dtype},
      {"positions", places}};
}

}  // namespace

void AddDecodeOptions(CLI::App& verb, DecodeOptions& o) {
  verb.footer(kExamples);
  verb.add_option("--model,model", o.model, "a file, or mnist, cifar10, fashion-small (cifar10)");
  verb.add_option("--mixer", o.mixer, "of a named model's layers (linear)");
  verb.add_option("--batch", o.batches, "sequences that are stepped together (1)")
      ->delimiter(',')
      ->type_name("LIST")
      ->check(CLI::Range(1, 4096));
  verb.add_option("--dtype", o.dtypes, "of the weights: f32, bf16, int8 (f32)")
      ->delimiter(',')
      ->type_name("LIST")
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
  verb.add_option("--length", o.length, "tokens of a sequence (the model's)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  verb.add_option("--seconds", o.seconds, "of timed steps a row (6)")
      ->check(CLI::Range(0.0, 600.0));
  verb.add_flag("--quick", o.quick, "a quarter of the time");
}

void BenchDecode(const DecodeOptions& o, const Output& output) {
  if (o.quick) MeasureMachineQuickly();
  RowPrinter printer(output, {{"batch", "batch", 5},
                              {"dtype", "dtype", -5},
                              {"tokens", "length", 6},
                              {"s/sequence", "seconds_per_sequence", 10},
                              {"sequences/s", "sequences_per_second", 11},
                              {"tokens/s", "tokens_per_second", 8},
                              {"us/step", "us_per_step", 8},
                              {"spread", "spread", 6, 100, "%"},
                              {"GFLOP/s", "gflops", 7},
                              {"of peak", "fraction_of_peak", 7, 100, "%"},
                              {"bound", "bound", -7},
                              {"integrated", "integrated", 10},
                              {"sampling", "sampling_fraction", 8, 100, "%"}});
  bool described = false;
  for (const std::string& dtype : o.dtypes) {
    const WeightType weights = ParseWeightType(dtype);
    const PackedModel model = MakeModel(o, weights);
    const ModelConfig& c = model.config();
    if (!described)
      output.note(fmt::format("{}: {} layers of {}\n{}", o.model, c.layers(), c.mixers[0],
                              Describe(ThisMachine())));
    described = true;
    for (const int64_t batch : o.batches) {
      const int64_t length = o.length > 0 ? o.length : c.max_len;
      const DecodeSetting setting{
          .batch = batch, .length = length, .seconds = o.quick ? o.seconds / 4 : o.seconds};
      const DecodeTiming timing = MeasureDecode(model, setting, output.check);
      printer.Print(RowOf(o, model, timing));
    }
  }
}

}  // namespace linattn::bench
