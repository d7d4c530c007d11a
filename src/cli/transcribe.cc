#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/console.h"
#include "cli/loaded_model.h"
#include "cli/transcriber.h"
#include "cli/verbs.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn transcribe speech.safetensors prompt.wav more/*.flac
  linattn transcribe speech.safetensors prompt.wav --beam 16 --json
  arecord -f S16_LE -r 16000 | linattn transcribe causal.safetensors - --rate 16000
  linattn transcribe causal.safetensors - --rate 8000 --save-state half.state < first.pcm
  linattn transcribe causal.safetensors - --rate 8000 --load-state half.state < second.pcm
Files may be WAV, FLAC or Ogg at any rate. "-" is a stream of 16-bit little-endian PCM, one channel, on standard input:
a causal model prints as it hears, in memory that does not grow.)";

struct Options {
  std::string model, save_state, load_state;
  std::vector<std::string> files;
  int64_t beam = 0, rate = 0;
  bool json = false;
};

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void TranscribeFiles(const Options& o, const PackedModel& model) {
  FileTranscriber transcriber(model);
  for (const std::string& file : o.files) {
    ThrowIfInterrupted();
    const auto start = Clock::now();
    const Audio audio = ReadAudio(file);
    const Transcript said = transcriber.Run(audio, file, o.beam);
    if (!o.json) {
      Print("{}{}\n", o.files.size() > 1 ? file + "\t" : "", said.text);
      continue;
    }
    nlohmann::ordered_json json = {
        {"file", file},
        {model.config().unit_kind, said.text},
        {"audio_s", static_cast<double>(audio.samples.size()) / static_cast<double>(audio.rate)},
        {"seconds", SecondsSince(start)}};
    if (o.beam > 0) json["log_probability"] = said.log_probability;
    Print("{}\n", json.dump());
  }
}

// Up to a tenth of a second of samples: what is there, without waiting for more. False at the end.
bool ReadSamples(int64_t rate, std::vector<uint8_t>& odd, std::vector<float>& samples) {
  std::vector<uint8_t> bytes(odd.size() + 2 * static_cast<size_t>(std::max<int64_t>(1, rate / 10)));
  std::copy(odd.begin(), odd.end(), bytes.begin());
  ssize_t n;
  do {
    ThrowIfInterrupted();
    n = ::read(0, bytes.data() + odd.size(), bytes.size() - odd.size());
  } while (n < 0 && errno == EINTR);
  Check(n >= 0, "transcribe", "cannot read standard input: {}", strerror(errno));
  bytes.resize(odd.size() + static_cast<size_t>(n));
  samples.clear();
  AppendPcm16(bytes, samples);
  odd.assign(bytes.end() - static_cast<int64_t>(bytes.size() % 2), bytes.end());
  return n > 0;
}

void TranscribeStream(const Options& o, const PackedModel& model) {
  Check(model.config().causal, "transcribe",
        "a stream needs a causal model, but this one reads both ways: give it files");
  Check(o.rate > 0, "transcribe", "a stream's sample rate must be given (--rate), but is not");
  Check(o.beam == 0, "transcribe", "--beam must be left out for a stream, which is read greedily");
  StreamTranscriber transcriber(model, o.rate);
  if (!o.load_state.empty()) transcriber.Load(o.load_state);
  const auto start = Clock::now();
  std::string all;
  const auto say = [&](const std::string& text) {
    if (o.json)
      all += text;
    else if (!text.empty())
      Write(text);
  };
  std::vector<uint8_t> odd;
  std::vector<float> samples;
  int64_t heard = 0;
  while (ReadSamples(o.rate, odd, samples)) {
    heard += std::ssize(samples);
    say(transcriber.Push(samples));
  }
  // A stream that goes on later has no end here.
  if (o.save_state.empty())
    say(transcriber.Finish());
  else
    transcriber.Save(o.save_state);
  if (!o.json) return Write("\n");
  const nlohmann::ordered_json json = {
      {model.config().unit_kind, all},
      {"audio_s", static_cast<double>(heard) / static_cast<double>(o.rate)},
      {"seconds", SecondsSince(start)}};
  Print("{}\n", json.dump());
}

void Run(const Options& o) {
  const LoadedModel model(o.model);
  const bool stream = o.files.size() == 1 && o.files[0] == "-";
  Check(stream || (o.save_state.empty() && o.load_state.empty() && o.rate == 0), "transcribe",
        "--rate, --save-state and --load-state are for a stream (the file \"-\")");
  stream ? TranscribeStream(o, model.model) : TranscribeFiles(o, model.model);
}

}  // namespace

void AddTranscribe(CLI::App& app, Common& common) {
  CLI::App& verb = *app.add_subcommand("transcribe", "what is said in recordings, or in a stream");
  auto o = std::make_shared<Options>();
  AddModelArgument(verb, o->model);
  verb.add_option("files", o->files, "WAV, FLAC or Ogg; \"-\": PCM on standard input")->required();
  verb.add_option("--beam", o->beam,
                  "prefixes that the search keeps (greedy: the likeliest symbols)")
      ->check(CLI::Range(1, 10000));
  verb.add_option("--rate", o->rate, "of a stream, samples a second")
      ->check(CLI::Range(1000, 384000));
  verb.add_option("--save-state", o->save_state, "of a stream: a file from which to go on later");
  verb.add_option("--load-state", o->load_state, "of a stream: go on from there");
  verb.add_flag("--json", o->json, "one line of JSON a file");
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o] { Run(*o); });
}

}  // namespace linattn::cli
