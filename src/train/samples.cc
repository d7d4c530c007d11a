#include "train/samples.h"

#include "runtime/generate.h"

namespace linattn {

std::vector<std::vector<int32_t>> DrawSamples(const std::string& path,
                                              const std::vector<int64_t>& labels,
                                              double temperature, uint64_t seed) {
  const PackedModel model = PackedModel::Load(path);
  std::vector<Request> requests;
  for (const int64_t label : labels) {
    requests.push_back({std::vector<int32_t>(model.config().max_len, kUnknown), label,
                        static_cast<uint64_t>(requests.size())});
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
