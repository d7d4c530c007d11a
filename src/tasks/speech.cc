#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "data/frame_stream.h"
#include "data/speech_set.h"
#include "kernels/ctc.h"
#include "kernels/ctc_decode.h"
#include "ops/ctc_op.h"
#include "tasks/task.h"

namespace linattn {
namespace {

constexpr const char* kWhere = "speech";

// Streams of the seed: an epoch's order, the jitter of lengths, a batch's masks.
constexpr uint64_t kOrderStream = uint64_t{1} << 62, kJitterStream = uint64_t{1} << 61,
                   kMaskStream = uint64_t{1} << 60;

struct Example {
  std::string path;
  std::vector<float> frames;  // [T,features], normalised
  int64_t length = 0;         // T
  std::vector<int32_t> labels;
};

// Mean and deviation of every channel.
struct Moments {
  std::vector<double> mean, deviation;
};

Moments MomentsOf(const std::vector<Example>& examples, int64_t features) {
  std::vector<double> sum(features), squares(features);
  double count = 0;
  for (const Example& e : examples) {
    for (size_t i = 0; i < e.frames.size(); ++i) {
      sum[i % features] += e.frames[i];
      squares[i % features] += double{e.frames[i]} * e.frames[i];
    }
    count += static_cast<double>(e.length);
  }
  Moments m{sum, squares};
  for (int64_t f = 0; f < features; ++f) {
    m.mean[f] /= count;
    const double variance = squares[f] / count - m.mean[f] * m.mean[f];
    m.deviation[f] = std::sqrt(std::max(variance, 1e-4));
  }
  return m;
}

// Recordings, spelled by CTC. Batches are of utterances of about one length; every epoch passes
// through all of them in an order of its own. Masks over times and channels are SpecAugment's (Park
// et al. 2019), without its warp.
class SpeechTask : public Task {
 public:
  explicit SpeechTask(const TaskOptions& options) : Task(options) {
    const DataConfig& data = options.data;
    const ModelConfig& m = options.model;
    SpeechSet set = LoadSpeech({data.source, m.unit_kind, data.dictionary});
    left_out_ = std::move(set.left_out);
    FindUnits(set);
    const Split held_out = data.full_train ? Split::kTest : Split::kValidation;
    for (const Utterance& utterance : set.utterances) {
      const bool train = utterance.split == Split::kTrain ||
                         (data.full_train && utterance.split == Split::kValidation);
      if (!train && utterance.split != held_out) continue;
      if (train && data.limit > 0 && std::ssize(train_) == data.limit) continue;
      Add(utterance, train ? train_ : held_out_);
    }
    Check(!train_.empty() && !held_out_.empty(), kWhere,
          "{}: there must be utterances to train on and to evaluate, but there are {} and {}{}",
          data.source, train_.size(), held_out_.size(), Counted());
    Normalise();
    ChooseHeldOut();
  }

  void FitModel(ModelConfig& model) const override {
    model.units = options_.model.units;
    model.vocab = options_.model.vocab;
    model.input_mean = options_.model.input_mean;
    model.input_deviation = options_.model.input_deviation;
  }

  std::vector<Metric> metrics() const override {
    return {{ErrorRateName(options_.model.unit_kind)}};
  }

  std::string Summary() const override {
    double seconds = 0;
    for (const Example& e : train_) seconds += static_cast<double>(e.length) / 100;
    return fmt::format(
        "{}: {} utterances ({:.1f} minutes) to train on, {} {} ones to evaluate, {} units{}",
        options_.data.source, train_.size(), seconds / 60, held_out_.size(),
        options_.data.full_train ? "test" : "validation", options_.model.vocab, Counted());
  }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> lines;
    for (const LeftOut& one : left_out_) lines.push_back(ToString(one));
    return lines;
  }

  Batch TrainBatch(int64_t index) const override {
    const int64_t per_epoch = BatchesOf(train_);
    const int64_t epoch = index / per_epoch;
    if (epoch != epoch_) {
      batches_ = ShuffledBatches(epoch);
      epoch_ = epoch;
    }
    std::vector<Example> masked;
    Random random(options_.seed, kMaskStream + static_cast<uint64_t>(index));
    for (const int64_t i : batches_[index % per_epoch]) {
      masked.push_back(train_[i]);
      Mask(masked.back(), random);
    }
    return BatchOf(masked);
  }

  int64_t eval_batches() const override { return BatchesOf(held_out_); }
  Batch EvalBatch(int64_t index) const override {
    const int64_t first = index * options_.batch;
    const int64_t end = std::min(first + options_.batch, std::ssize(held_out_));
    return BatchOf({held_out_.data() + first, static_cast<size_t>(end - first)});
  }

  at::Tensor Loss(const at::Tensor& outputs, const Batch& batch) const override {
    return CtcLossOp(outputs, batch.lengths, batch.labels, options_.model.blank).sum();
  }

  std::vector<Tally> Measure(const at::Tensor& outputs, const Batch& batch,
                             double /*nats*/) const override {
    const at::Tensor x = outputs.to(at::kFloat).contiguous();
    const int64_t T = x.size(1), C = x.size(2);
    Tally tally;
    for (size_t b = 0; b < batch.labels.size(); ++b) {
      const float* logits = x.data_ptr<float>() + static_cast<int64_t>(b) * T * C;
      const std::vector<int32_t> said = CtcGreedyLabels(
          {logits, static_cast<size_t>(batch.lengths[b] * C)}, C, options_.model.blank);
      tally.sum += static_cast<double>(EditDistance(batch.labels[b], said));
      tally.count += static_cast<double>(batch.labels[b].size());
    }
    return {tally};
  }

 private:
  // The model's units, or else all that occur, in order, with a blank at its place.
  void FindUnits(const SpeechSet& set) {
    ModelConfig& m = options_.model;
    if (m.units.empty()) {
      std::set<std::string> found;
      for (const Utterance& u : set.utterances) found.insert(u.units.begin(), u.units.end());
      m.units.assign(found.begin(), found.end());
      Check(m.blank <= std::ssize(m.units), kWhere,
            "the blank must be one of {} outputs, from 0 on, but is {}", m.units.size() + 1,
            m.blank);
      m.units.insert(m.units.begin() + m.blank, "");
      m.vocab = std::ssize(m.units);
    }
    for (int64_t i = 0; i < std::ssize(m.units); ++i)
      if (i != m.blank) number_[m.units[i]] = static_cast<int32_t>(i);
  }

  bool Spell(const Utterance& utterance, std::vector<int32_t>& labels) {
    for (const std::string& unit : utterance.units) {
      const auto found = number_.find(unit);
      if (found == number_.end()) {
        left_out_.push_back({utterance.name, "with a unit that the model has not", unit});
        return false;
      }
      labels.push_back(found->second);
    }
    return true;
  }

  // Reads its audio; names it among those left out if it cannot be learned from.
  void Add(const Utterance& utterance, std::vector<Example>& to) {
    const ModelConfig& m = options_.model;
    Example e{utterance.path, {}, 0, {}};
    if (!Spell(utterance, e.labels)) return;
    const Audio audio = ReadAudio(utterance.path);
    e.frames = RowsOf({m.sample_rate, m.input_features, 1, {}, {}}, audio);
    e.length = std::ssize(e.frames) / m.input_features;
    const int64_t rows = m.RowsOf(e.length), needed = CtcFramesNeeded(e.labels);
    const auto leave_out = [&](const char* reason, const std::string& detail) {
      left_out_.push_back({utterance.name, reason, detail});
    };
    if (audio.cut) {
      leave_out("cut", "the file ends before its header or its format says it does");
    } else if (rows < needed) {
      const std::string what =
          fmt::format("CTC needs {} rows for its {} labels, but {} frames make {}", needed,
                      e.labels.size(), e.length, rows);
      Check(options_.data.unalignable == "skip", kWhere,
            "{}: {} (data.unalignable = \"skip\" leaves such utterances out)", utterance.path,
            what);
      leave_out("too short for what is said", what);
    } else if (rows > m.max_len) {
      leave_out("longer than model.max_len", fmt::format("{} rows, but {}", rows, m.max_len));
    } else {
      to.push_back(std::move(e));
    }
  }

  void Normalise() {
    ModelConfig& m = options_.model;
    if (m.input_mean.empty()) {
      Moments moments = MomentsOf(train_, m.input_features);
      m.input_mean = std::move(moments.mean), m.input_deviation = std::move(moments.deviation);
    }
    for (auto* examples : {&train_, &held_out_}) {
      for (Example& e : *examples) {
        for (size_t i = 0; i < e.frames.size(); ++i) {
          const size_t f = i % m.input_features;
          double x = e.frames[i] - m.input_mean[f];
          if (!m.input_deviation.empty()) x /= m.input_deviation[f];
          e.frames[i] = static_cast<float>(x);
        }
      }
    }
  }

  // As many as asked for, evenly spaced, by length.
  void ChooseHeldOut() {
    std::stable_sort(held_out_.begin(), held_out_.end(),
                     [](const Example& a, const Example& b) { return a.length < b.length; });
    const int64_t n = std::ssize(held_out_), wanted = options_.eval_examples;
    if (wanted == 0 || wanted >= n) return;
    std::vector<Example> chosen;
    for (int64_t i = 0; i < wanted; ++i) chosen.push_back(std::move(held_out_[i * n / wanted]));
    held_out_ = std::move(chosen);
  }

  int64_t BatchesOf(const std::vector<Example>& examples) const {
    return (std::ssize(examples) + options_.batch - 1) / options_.batch;
  }

  // By length, give or take a fifth, then cut; the batches in random order.
  std::vector<std::vector<int64_t>> ShuffledBatches(int64_t epoch) const {
    Random jitter(options_.seed, kJitterStream + static_cast<uint64_t>(epoch));
    std::vector<std::pair<double, int64_t>> keys;
    for (int64_t i = 0; i < std::ssize(train_); ++i)
      keys.emplace_back(static_cast<double>(train_[i].length) * (0.9 + 0.2 * jitter.Uniform()), i);
    std::sort(keys.begin(), keys.end());
    const std::vector<int64_t> order =
        Permutation(BatchesOf(train_), options_.seed, kOrderStream + static_cast<uint64_t>(epoch));
    std::vector<std::vector<int64_t>> batches(order.size());
    for (size_t i = 0; i < keys.size(); ++i)
      batches[order[i / options_.batch]].push_back(keys[i].second);
    return batches;
  }

  void Mask(Example& e, Random& random) const {
    const DataConfig& d = options_.data;
    const int64_t F = options_.model.input_features;
    for (int64_t i = 0; i < d.time_masks; ++i) {
      const int64_t most = std::min(d.time_mask, e.length / 4);  // short ones keep what they say
      const auto width = static_cast<int64_t>(random.Below(most + 1));
      const auto begin = static_cast<int64_t>(random.Below(e.length - width + 1));
      std::fill_n(e.frames.begin() + begin * F, width * F, 0.0f);
    }
    for (int64_t i = 0; i < d.mel_masks; ++i) {
      const auto width = static_cast<int64_t>(random.Below(std::min(d.mel_mask, F) + 1));
      const auto begin = static_cast<int64_t>(random.Below(F - width + 1));
      for (int64_t t = 0; t < e.length; ++t)
        std::fill_n(e.frames.begin() + t * F + begin, width, 0.0f);
    }
  }

  // Rows of frames; shorter ones have zeros behind them, and a mask.
  Batch BatchOf(std::span<const Example> examples) const {
    const ModelConfig& m = options_.model;
    const int64_t B = std::ssize(examples), width = m.row_width();
    Batch batch;
    for (const Example& e : examples) {
      batch.lengths.push_back(m.RowsOf(e.length));
      batch.labels.push_back(e.labels);
      batch.tokens += batch.lengths.back();
    }
    const int64_t T = *std::max_element(batch.lengths.begin(), batch.lengths.end());
    batch.inputs = at::zeros({B, T, width});
    for (int64_t b = 0; b < B; ++b)
      std::copy(examples[b].frames.begin(), examples[b].frames.end(),
                batch.inputs.data_ptr<float>() + b * T * width);
    if (batch.tokens == B * T) return batch;
    const at::Tensor lengths = at::tensor(batch.lengths).unsqueeze(1);
    batch.mask = at::arange(T, at::kLong).unsqueeze(0).lt(lengths);
    return batch;
  }

  std::string Counted() const { return left_out_.empty() ? "" : "; " + CountReasons(left_out_); }

  std::vector<Example> train_, held_out_;
  std::vector<LeftOut> left_out_;
  std::map<std::string, int32_t> number_;  // of a unit
  mutable int64_t epoch_ = -1;             // that batches_ is of
  mutable std::vector<std::vector<int64_t>> batches_;
};

}  // namespace

std::unique_ptr<Task> MakeSpeechTask(const TaskOptions& options) {
  return std::make_unique<SpeechTask>(options);
}

}  // namespace linattn
