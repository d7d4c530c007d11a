#include "cli/eval_speech.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/progress.h"
#include "base/steady_seconds.h"
#include "cli/console.h"
#include "cli/transcriber.h"
#include "data/audio.h"
#include "data/speech_set.h"
#include "kernels/ctc.h"

namespace linattn::cli {
namespace {

struct Sums {
  int64_t utterances = 0, errors = 0, labels = 0;
  double audio_s = 0;
  double rate() const { return static_cast<double>(errors) / static_cast<double>(labels); }
};

// Those of the split, at most `limit`.
std::vector<Utterance> Chosen(const SpeechEvalOptions& o, SpeechSet set) {
  std::vector<Utterance> chosen;
  int64_t counts[3] = {};
  for (Utterance& utterance : set.utterances) {
    ++counts[static_cast<int>(utterance.split)];
    if (o.limit > 0 && std::ssize(chosen) == o.limit) continue;
    if (o.split == "all" || utterance.split == ParseSplit(o.split))
      chosen.push_back(std::move(utterance));
  }
  const auto count = [&](Split split) { return counts[static_cast<int>(split)]; };
  Check(!chosen.empty(), "eval",
        "{}: there must be utterances of the split {}, but there are {} of train, {} of validation "
        "and {} of test (--split all takes them all)",
        o.data, o.split, count(Split::kTrain), count(Split::kValidation), count(Split::kTest));
  return chosen;
}

class SpeechEval {
 public:
  SpeechEval(const SpeechEvalOptions& o, const PackedModel& model)
      : o_(o), c_(model.config()), transcriber_(model) {
    for (size_t i = 0; i < c_.units.size(); ++i)
      if (static_cast<int64_t>(i) != c_.blank) number_[c_.units[i]] = static_cast<int32_t>(i);
  }

  Sums Run() {
    SpeechSet set = LoadSpeech({o_.data, c_.unit_kind, o_.dictionary});
    left_out_ = std::move(set.left_out);
    const std::vector<Utterance> chosen = Chosen(o_, std::move(set));
    Progress progress(
        std::ssize(chosen), stderr,
        {o_.quiet ? Progress::Style::kQuiet : Progress::Style::kAuto, "utterance", {}});
    for (int64_t i = 0; i < std::ssize(chosen); ++i) {
      ThrowIfInterrupted();
      Add(chosen[i]);
      progress.Update(i + 1, sums_.labels == 0 ? "" : fmt::format("{:.4f}", sums_.rate()));
    }
    progress.Finish();
    Check(sums_.labels > 0, "eval", "{}: none of the {} utterances can be used: {}", o_.data,
          chosen.size(), CountReasons(left_out_));
    return sums_;
  }

  const std::vector<LeftOut>& left_out() const { return left_out_; }

 private:
  void Add(const Utterance& utterance) {
    const Audio audio = ReadAudio(utterance.path);
    std::vector<int32_t> wanted;
    for (const std::string& unit : utterance.units) {
      const auto found = number_.find(unit);
      wanted.push_back(found == number_.end() ? -1 : found->second);  // -1: never said
    }
    const int64_t rows = c_.RowsOf(CountFrames(FramesOf(c_), audio));
    const char* reason = audio.cut                                  ? "cut"
                         : rows < CtcFramesNeeded(wanted)           ? "too short for what is said"
                         : rows > transcriber_.LongestFile(o_.beam) ? "longer than model.max_len"
                                                                    : nullptr;
    if (reason != nullptr) return left_out_.push_back({utterance.name, reason});
    const Transcript said = transcriber_.Run(audio, utterance.path, o_.beam);
    sums_.errors += EditDistance(wanted, said.labels);
    sums_.labels += std::ssize(wanted);
    sums_.audio_s += static_cast<double>(audio.samples.size()) / static_cast<double>(audio.rate);
    ++sums_.utterances;
  }

  const SpeechEvalOptions& o_;
  const ModelConfig& c_;
  FileTranscriber transcriber_;
  std::map<std::string, int32_t> number_;  // of a unit
  std::vector<LeftOut> left_out_;
  Sums sums_;
};

}  // namespace

void EvalSpeech(const SpeechEvalOptions& o, const PackedModel& model) {
  SpeechEval eval(o, model);
  const double start = SteadySeconds();
  const Sums sums = eval.Run();
  const double seconds = SteadySeconds() - start;
  const double speed = static_cast<double>(sums.utterances) / seconds;
  const std::string metric = ErrorRateName(model.config().unit_kind);
  if (o.json) {
    const nlohmann::ordered_json json = {{"data", o.data},
                                         {"split", o.split},
                                         {"count", sums.utterances},
                                         {metric, sums.rate()},
                                         {"errors", sums.errors},
                                         {"labels", sums.labels},
                                         {"left_out", eval.left_out().size()},
                                         {"beam", o.beam},
                                         {"audio_s", sums.audio_s},
                                         {"per_second", speed}};
    return Print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  if (!o.quiet && !eval.left_out().empty())
    fmt::print(stderr, "{}: {}\n", o.data, CountReasons(eval.left_out()));
  Print("{:.4f} {}  {} errors in {} {}  {} utterances of {} ({})  {:.1f} utterances/s\n",
        sums.rate(), metric, sums.errors, sums.labels, model.config().unit_kind, sums.utterances,
        o.data, o.split, speed);
}

}  // namespace linattn::cli
