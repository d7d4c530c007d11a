// make_fuzz_seeds DIR: small valid files for each fuzz target, DIR/TARGET/*.

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/png.h"
#include "base/safetensors.h"
#include "data/cifar.h"
#include "data/gzip.h"
#include "data/idx.h"
#include "model/model_file.h"

namespace linattn {
namespace {

const std::string kTestdata = LINATTN_TESTDATA;

ModelConfig TinyConfig(bool tied) {
  ModelConfig config;
  config.height = config.width = 2;
  config.channels = 1;
  config.max_len = 4;
  config.dim = 2;
  config.heads = config.value_heads = 1;
  config.head_dim = config.value_dim = 2;
  config.mlp_dim = 2;
  config.mixers = {"linear"};
  config.tied = tied;
  if (tied) config.head = "categorical";
  config.mixtures = 1;
  return config;
}

void MakeModels(const std::string& directory) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = TinyConfig(tied);
    std::map<std::string, std::vector<float>> tensors;
    for (const auto& spec : Parameters(config)) {
      int64_t size = 1;
      for (const int64_t n : spec.shape) size *= n;
      tensors[spec.name].assign(static_cast<size_t>(size), 0.5f);
    }
    for (const DType storage : {DType::kF32, DType::kBF16, DType::kF16})
      SaveModel(directory + "/model_" + (tied ? "tied_" : "") + std::string(NameOf(storage)),
                config, tensors, storage);
  }
  const std::vector<double> f64 = {1, 1e300};
  const std::vector<int64_t> i64 = {-1};
  const std::vector<uint8_t> u8 = {1, 2, 3};
  const NamedTensor mixed[] = {ToStore<double>("d", {2}, f64), ToStore<int64_t>("i", {}, i64),
                               ToStore<uint8_t>("u", {3, 1}, u8), ToStore<float>("e", {0}, {})};
  WriteSafetensors(directory + "/mixed", mixed, {{"key", "value"}});
}

void MakeIdx(const std::string& directory) {
  for (const std::string name : {"t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"}) {
    const Bytes packed = ReadFile(kTestdata + "/mnist/" + name);
    WriteFileAtomic(directory + "/" + name, packed);
    Bytes plain = Unpack(packed, 1 << 20, name).bytes;
    WriteFileAtomic(directory + "/plain_" + name, plain);
    if (plain[3] != 3) continue;
    plain[7] = 1;  // one image
    plain.resize(16 + 784);
    WriteFileAtomic(directory + "/one_" + name, plain);
  }
}

void MakeCifar(const std::string& directory) {
  const Bytes packed = ReadFile(kTestdata + "/cifar10/train_10.bin.gz");
  Bytes plain = Unpack(packed, 1 << 20, "train").bytes;
  plain.resize(2 * 3073);
  WriteFileAtomic(directory + "/two", plain);
  WriteFileAtomic(directory + "/packed", packed);
}

void MakePng(const std::string& directory) {
  WritePng(directory + "/grey.png", {2, 3, 1, {0, 50, 100, 150, 200, 250}});
  WritePng(directory + "/rgb.png", {1, 2, 3, {0, 50, 100, 150, 200, 250}});
  const auto frog = ParseCifar10(ReadFile(kTestdata + "/cifar10/train_10.bin.gz"), "train");
  WritePng(directory + "/frog.png", frog.ImageAt(0));
}

void MakeManifests(const std::string& directory) {
  WriteFileAtomic(directory + "/plain.tsv", "a.wav\tPress 1, or 42.\nb/c.flac\tbye\ttest\n");
  WriteFileAtomic(directory + "/named.tsv", "file\tseconds\ttext\na.wav\t0.7\tit's\n");
  WriteFileAtomic(directory + "/lines.jsonl",
                  "{\"audio_filepath\": \"a.wav\", \"text\": \"hi\", \"split\": \"train\"}\n");
  WriteFileAtomic(directory + "/dictionary", "read R EH D\nread(2) R IY D\n");
}

void MakeFlaConfigs(const std::string& directory) {
  for (const auto& checkpoint : std::filesystem::directory_iterator(kTestdata + "/fla")) {
    const std::string name = checkpoint.path().filename().string();
    WriteFileAtomic(directory + "/" + name, ReadFile(checkpoint.path().string() + "/config.json"));
  }
}

void MakeAll(const std::string& root) {
  const std::pair<const char*, void (*)(const std::string&)> kTargets[] = {
      {"safetensors_fuzz", MakeModels},
      {"fla_config_fuzz", MakeFlaConfigs},
      {"idx_fuzz", MakeIdx},
      {"cifar_fuzz", MakeCifar},
      {"png_fuzz", MakePng},
      {"manifest_fuzz", MakeManifests}};
  for (const auto& [target, make] : kTargets) {
    const std::string directory = root + "/" + target;
    std::filesystem::create_directories(directory);
    make(directory);
  }
}

}  // namespace
}  // namespace linattn

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_fuzz_seeds DIR\n");
    return 2;
  }
  try {
    linattn::MakeAll(argv[1]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
