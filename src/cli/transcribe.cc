#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/steady_seconds.h"
#include "cli/console.h"
#include "cli/loaded_model.h"
#include "cli/transcriber.h"
#include "cli/verbs.h"
#include "data/pcm_stream.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn transcribe speech.safetensors prompt.wav more/*.flac
  linattn transcribe speech.safetensors prompt.wav --beam 16 --json
  arecord -f S16_LE -r 16000 | linattn transcribe causal.safetensors -
  linattn transcribe causal.safetensors - --rate 8000 --save-state half.state < first.pcm
  linattn transcribe causal.safetensors - --rate 8000 --load-state half.state < second.pcm
Files may be WAV, FLAC or Ogg at any rate; one that cannot be read is reported, and the others are transcribed all the
same (exit status 2). "-" is a stream of 16-bit little-endian PCM, one channel, on standard input, bare (then with --rate)
or as a WAV file: a causal model prints as it hears, in memory that does not grow. Ctrl-C loses nothing: --save-state is
written, --json printed. A causal model without positions also takes files of any length.)";

struct Options {
  std::string model, save_state, load_state;
  std::vector<std::string> files;
  int64_t beam = 0, rate = 0;
  bool json = false;
};

// File names need not be UTF-8, as JSON must.
void PrintJson(const nlohmann::ordered_json& json) {
  Print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void TranscribeFile(const Options& o, const std::string& file, const ModelConfig& c,
                    FileTranscriber& transcriber) {
  const double start = SteadySeconds();
  const Audio audio = ReadAudio(file);
  const Transcript said = transcriber.Run(audio, file, o.beam);
  if (audio.cut) fmt::print(stderr, "{}: is cut: what there is of it was read\n", file);
  const std::string text = Spell(c, said.labels);
  if (!o.json) return Print("{}{}\n", o.files.size() > 1 ? file + "\t" : "", text);
  nlohmann::ordered_json json = {
      {"file", file},
      {c.unit_kind, text},
      {"audio_s", static_cast<double>(audio.samples.size()) / static_cast<double>(audio.rate)},
      {"seconds", SteadySeconds() - start}};
  if (o.beam > 0) json["log_probability"] = said.log_probability;
  if (audio.cut) json["cut"] = true;
  PrintJson(json);
}

// All of them, whatever is wrong with one.
void TranscribeFiles(const Options& o, const PackedModel& model) {
  FileTranscriber transcriber(model);
  size_t failed = 0;
  for (const std::string& file : o.files) {
    ThrowIfInterrupted();
    try {
      TranscribeFile(o, file, model.config(), transcriber);
    } catch (const Error& e) {
      if (o.files.size() == 1) throw;
      ++failed;
      fmt::print(stderr, "linattn: {}\n", e.what());
      if (o.json) PrintJson({{"file", file}, {"error", e.what()}});
    }
  }
  Check(failed == 0, "transcribe", "all {} files must be transcribed, but {} could not be",
        o.files.size(), failed);
}

// What standard input has, without waiting for more than a byte; 0 at its end.
size_t ReadInput(std::span<uint8_t> to) {
  constexpr int kPatience = 250;  // ms, for a signal that comes just before the wait
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (true) {
    ThrowIfInterrupted();
    const int ready = ::poll(&input, 1, kPatience);  // read would go on after a signal
    const ssize_t n = ready > 0 ? ::read(STDIN_FILENO, to.data(), to.size()) : ready - 1;
    if (n >= 0) return static_cast<size_t>(n);
    Check(ready == 0 || errno == EINTR || errno == EAGAIN, "transcribe",
          "cannot read standard input: {}", strerror(errno));
  }
}

// A stream, and what remains of it however it ends.
class Listener {
 public:
  Listener(const Options& o, const PackedModel& model)
      : o_(o),
        kind_(model.config().unit_kind),
        input_(ReadInput, o.rate),
        transcriber_(model, input_.rate()) {
    if (!o.load_state.empty()) transcriber_.Load(o.load_state);
  }

  // Until the input's end, or until the user has had enough, which loses nothing.
  void Run() {
    try {
      for (auto pcm = input_.Read(); !pcm.empty(); pcm = input_.Read()) {
        bytes_ += std::ssize(pcm);
        Say(transcriber_.Push(pcm));
      }
    } catch (const Interrupted&) {
      Finish();
      throw;
    } catch (const OutputClosed&) {
      if (!o_.save_state.empty()) transcriber_.Save(o_.save_state);
      throw;
    } catch (const Error&) {  // as at the maximum of a model that has one
      if (heard_) Report();
      throw;
    }
    Finish();
  }

 private:
  void Say(const std::string& text) {
    heard_ |= !text.empty();
    if (o_.json)
      all_ += text;
    else if (!text.empty())
      Write(text);
  }

  // A stream that goes on later has no end here.
  void Finish() {
    if (o_.save_state.empty())
      Say(transcriber_.Finish());
    else
      transcriber_.Save(o_.save_state);
    Report();
  }

  // What was heard.
  void Report() {
    if (!o_.json) return Write("\n");
    const auto samples = static_cast<double>(bytes_ / 2);
    PrintJson({{kind_, all_},
               {"audio_s", samples / static_cast<double>(input_.rate())},
               {"seconds", SteadySeconds() - start_}});
  }

  const Options& o_;
  const std::string kind_;
  PcmStream input_;
  StreamTranscriber transcriber_;
  std::string all_;
  bool heard_ = false;
  int64_t bytes_ = 0;
  const double start_ = SteadySeconds();
};

void TranscribeStream(const Options& o, const PackedModel& model) {
  Check(model.config().causal, "transcribe",
        "a stream needs a causal model, but this one reads both ways: give it files");
  Check(o.beam == 0, "transcribe", "--beam must be left out for a stream, which is read greedily");
  Check(!isatty(STDIN_FILENO), "transcribe",
        "standard input must be a stream of samples, but is a terminal");
  Listener(o, model).Run();
}

void Run(const Options& o) {
  const bool stream = o.files.size() == 1 && o.files[0] == "-";
  Check(stream || std::ranges::find(o.files, "-") == o.files.end(), "transcribe",
        "the stream \"-\" must be the only file, but there are {}", o.files.size());
  Check(stream || (o.save_state.empty() && o.load_state.empty() && o.rate == 0), "transcribe",
        "--rate, --save-state and --load-state are for a stream (the file \"-\")");
  CheckOut(o.save_state, "transcribe", "--save-state");
  const LoadedModel model(o.model);
  CheckTask(model.config(), "transcribe", {"speech"});
  stream ? TranscribeStream(o, model.model) : TranscribeFiles(o, model.model);
}

}  // namespace

void AddTranscribe(CLI::App& app, Common& common) {
  CLI::App& verb = *app.add_subcommand("transcribe", "what is said in recordings, or in a stream");
  auto o = std::make_shared<Options>();
  AddModelArgument(verb, o->model);
  verb.add_option("files", o->files, "WAV, FLAC or Ogg; \"-\": PCM or WAV on standard input")
      ->required();
  verb.add_option("--beam", o->beam,
                  "prefixes that the search keeps (greedy: the likeliest symbols)")
      ->check(CLI::Range(1, 10000));
  verb.add_option("--rate", o->rate, "of a stream, samples a second (of a WAV stream: its own)")
      ->check(CLI::Range(1000, 384000));
  verb.add_option("--save-state", o->save_state, "of a stream: a file from which to go on later");
  verb.add_option("--load-state", o->load_state, "of a stream: go on from there");
  verb.add_flag("--json", o->json, "one line of JSON a file");
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o] { Run(*o); });
}

}  // namespace linattn::cli
