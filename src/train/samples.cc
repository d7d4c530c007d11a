#include "train/samples.h"

#include "runtime/generate.h"

namespace linattn {

std::vector<std::vector<int32_t>> DrawSamples(const std::string& path,
                                              const std::vector<Prompt>& prompts,
                                              double temperature, uint64_t seed) {
  const PackedModel model = PackedModel::Load(path);
  std::vector<Request> requests;
  for (const Prompt& prompt : prompts) {
    requests.push_back({prompt.symbols, prompt.label, requests.size()});
  }
  GenerateOptions options;
  options.seed = seed;
  options.sampler.temperature = temperature;
  Generate(model, requests, options);
  std::vector<std::vector<int32_t>> sequences;
  for (Request& request : requests) sequences.push_back(std::move(request.symbols));
  return sequences;
}

}  // namespace linattn
