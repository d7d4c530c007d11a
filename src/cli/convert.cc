#include <fmt/ranges.h>

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "cli/console.h"
#include "cli/verbs.h"
#include "model/fla_checkpoint.h"
#include "model/parameters.h"

namespace linattn::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExamples = R"(
Examples:
  linattn convert --from fla gla-1.3B --out gla.safetensors
  linattn convert --from fla DIR --out model.safetensors --dtype bf16 --max-len 65536
  linattn generate gla.safetensors --prompt "415 902 17" --tokens 50       ids of its tokenizer
DIR holds config.json and model.safetensors, or its shards and their index, as save_pretrained of
flash-linear-attention writes them: linear_attn, gla, delta_net, gated_deltanet, kda, and hybrids of
them with softmax layers. Nothing is written unless every tensor has its place.)";

struct Options {
  std::string from, directory, out, dtype;
  int64_t max_len = 0;
};

// Writing over what is read would leave neither.
void CheckOutIsNotInput(const Options& o) {
  std::error_code error;
  if (!fs::exists(o.out, error)) return;
  for (const auto& entry : fs::directory_iterator(o.directory, error)) {
    Check(!fs::equivalent(entry.path(), o.out, error), "convert",
          "--out must not be a file of the checkpoint, but is '{}'", o.out);
  }
}

DType Storage(const Options& o, DType checkpoint) {
  return o.dtype.empty() ? checkpoint : StorageByName(o.dtype);
}

// "3 x gated_delta, 1 x softmax", in the order of their first layers.
std::string Mixers(const ModelConfig& c) {
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const std::string& mixer : c.mixers) {
    size_t i = 0;
    while (i < counts.size() && counts[i].first != mixer) ++i;
    if (i == counts.size()) counts.emplace_back(mixer, 0);
    ++counts[i].second;
  }
  std::vector<std::string> parts;
  for (const auto& [mixer, count] : counts) parts.push_back(fmt::format("{} x {}", count, mixer));
  return fmt::format("{}", fmt::join(parts, ", "));
}

void Report(const Options& o, const FlaCheckpoint& checkpoint, DType storage) {
  const FlaConfig& fla = checkpoint.config;
  const ModelConfig& c = checkpoint.model.config;
  int64_t parameters = 0;
  for (const ParameterSpec& spec : Parameters(c)) parameters += ElementsOf(spec);
  std::string text =
      fmt::format("{}: {}, {} layers ({}), dim {}, vocabulary {}, up to {} tokens\n", o.out,
                  fla.model_type, c.layers(), Mixers(c), c.dim, c.vocab, c.max_len);
  text += fmt::format("{} tensors, {} parameters in {}\n", checkpoint.model.tensors.size(),
                      parameters, NameOf(storage));
  text += fla.start_token < 0
              ? fmt::format("start token {}: zeros, as config.json names no bos or eos\n", c.vocab)
              : fmt::format("start token {}: as token {}\n", c.vocab, fla.start_token);
  if (!fla.ignored.empty())
    text += fmt::format("ignored in config.json: {}\n", fmt::join(fla.ignored, ", "));
  Write(text);
}

void Run(const Options& o, const Common& common) {
  CheckOut(o.out, "convert");
  Check(o.out != "-", "convert", "--out must be a file, but is standard output");
  FlaCheckpoint checkpoint = LoadFlaCheckpoint(o.directory);
  CheckOutIsNotInput(o);
  ModelFile& model = checkpoint.model;
  if (o.max_len > 0) model.config.max_len = o.max_len;
  const DType storage = Storage(o, model.storage);
  SaveModel(o.out, model.config, model.tensors, storage, model.metadata);
  if (!common.quiet) Report(o, checkpoint, storage);
}

}  // namespace

void AddConvert(CLI::App& app, Common& common) {
  CLI::App& verb = *app.add_subcommand("convert", "make a model file of another program's model");
  auto o = std::make_shared<Options>();
  verb.add_option("--from", o->from, "whose: fla (flash-linear-attention)")
      ->required()
      ->check(CLI::IsMember({"fla"}));
  verb.add_option("directory", o->directory, "folder of the checkpoint")
      ->required()
      ->type_name("DIR");
  verb.add_option("--out", o->out, "model file to write")->required()->type_name("FILE");
  verb.add_option("--dtype", o->dtype,
                  "f32, f16 or bf16 (default: the narrowest that loses nothing)")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  verb.add_option("--max-len", o->max_len,
                  "longest sequence (default: max_position_embeddings of config.json)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o, &common] { Run(*o, common); });
}

}  // namespace linattn::cli
