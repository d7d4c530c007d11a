#include "train/samples.h"

#include <numeric>

#include "base/random.h"
#include "kernels/sampler.h"
#include "runtime/session.h"

namespace linattn {
namespace {

class Drawer {
 public:
  Drawer(const ModelConfig& config, double temperature) : config_(config) {
    options_.temperature = temperature;
  }

  int32_t Draw(std::span<const float> outputs, Random& random) {
    if (config_.head == "categorical") {
      return static_cast<int32_t>(SampleCategorical(outputs, options_, random, scratch_));
    }
    uint8_t pixel = 0;
    SampleLogisticMixture(outputs, options_.temperature, random, {&pixel, 1});
    return pixel;
  }

 private:
  const ModelConfig& config_;
  SamplerOptions options_;
  SamplerScratch scratch_;
};

}  // namespace

std::vector<std::vector<int32_t>> DrawSamples(const std::string& path,
                                              const std::vector<int64_t>& labels,
                                              double temperature, uint64_t seed) {
  const PackedModel model = PackedModel::Load(path);
  const ModelConfig& config = model.config();
  const auto n = static_cast<int64_t>(labels.size());
  Session session(model, n);
  std::vector<std::vector<int32_t>> sequences(n);
  std::vector<int64_t> slots(n);
  std::iota(slots.begin(), slots.end(), int64_t{0});
  std::vector<int32_t> tokens(n);
  std::vector<Random> random;
  for (int64_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<int32_t>(config.start_token(labels[i]));
    random.emplace_back(seed, static_cast<uint64_t>(i));
  }
  Drawer drawer(config, temperature);
  for (int64_t t = 0; t < config.max_len; ++t) {
    session.Step(slots, tokens);
    for (int64_t i = 0; i < n; ++i) {
      tokens[i] = drawer.Draw(session.outputs(i), random[i]);
      sequences[i].push_back(tokens[i]);
    }
  }
  return sequences;
}

}  // namespace linattn
