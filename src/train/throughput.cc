#include "train/throughput.h"

#include <omp.h>

#include "kernels/machine_peak.h"
#include "kernels/mixer.h"
#include "model/layer.h"
#include "model/parameters.h"

namespace linattn {

double TrainingFlopsPerToken(const ModelConfig& config, int64_t T) {
  double flops = 0;
  for (const ParameterSpec& spec : Parameters(config)) {
    const bool table = spec.name.starts_with("embed.") || spec.name.starts_with("position.");
    if (spec.shape.size() != 2 || table) continue;
    flops += 6.0 * static_cast<double>(spec.shape[0] * spec.shape[1]);
  }
  if (config.tied) flops += 6.0 * static_cast<double>(config.outputs() * config.dim);
  for (int64_t i = 0; i < config.layers(); ++i) {
    MixerDims dims = StateDimsOf(config, i);
    dims.B = dims.N = 1, dims.T = dims.S = T;
    const Mixer& mixer = *PlanLayer(config, i).mixer;
    flops += 3.5 * mixer.flops(dims, config.causal) / static_cast<double>(T);
  }
  return flops;
}

double PeakGflops(const std::string& dtype) {
  if (dtype != "bf16") return MeasureFmaPeak();
  return MeasureMachinePeak(omp_get_max_threads(), 0.6).bfloat16_gflops;
}

}  // namespace linattn
