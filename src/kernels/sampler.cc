#include "kernels/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace linattn {
namespace {

constexpr double kMassSlack = 1e-6;  // rounding of float32 logits and their exponentials

int64_t ArgMax(std::span<const float> values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

void CheckTemperature(double temperature) {
  Check(temperature >= 0 && std::isfinite(temperature), "sampler",
        "temperature must be 0 or a positive number, but is {}", temperature);
}

void CheckDraw(std::span<const float> logits, const SamplerOptions& options) {
  CheckTemperature(options.temperature);
  Check(options.top_k >= 0, "sampler", "top_k must be at least 0 (no limit), but is {}",
        options.top_k);
  Check(options.top_p > 0 && options.top_p <= 1, "sampler", "top_p must be in (0,1], but is {}",
        options.top_p);
  Check(!logits.empty(), "sampler", "there must be at least one logit, but got none");
  for (size_t i = 0; i < logits.size(); ++i)
    Check(std::isfinite(logits[i]), "sampler", "logits must be finite, but logit {} of {} is {}", i,
          logits.size(), logits[i]);
}

bool MoreLikely(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.symbol < b.symbol;
}

// Divides by the sum of the first `count` and drops the rest.
void Keep(SamplerScratch& candidates, size_t count) {
  candidates.resize(count);
  double sum = 0;
  for (const Candidate& c : candidates) sum += c.probability;
  for (Candidate& c : candidates) c.probability /= sum;
}

size_t NucleusSize(const SamplerScratch& candidates, double top_p) {
  double mass = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    mass += candidates[i].probability;
    if (mass >= top_p - kMassSlack) return i + 1;
  }
  return candidates.size();
}

// Inverse of the cumulative sum; rounding that leaves u beyond the last one draws the last symbol
// of any probability.
int64_t Draw(std::span<const Candidate> candidates, double u) {
  int64_t last = candidates[0].symbol;
  for (const Candidate& c : candidates) {
    if (c.probability == 0) continue;
    last = c.symbol;
    u -= c.probability;
    if (u < 0) break;
  }
  return last;
}

// softmax(logits / temperature) in symbol order.
void Weigh(std::span<const float> logits, double temperature, SamplerScratch& scratch) {
  const double top = logits[ArgMax(logits)];
  scratch.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    scratch.push_back({static_cast<int64_t>(i), std::exp((logits[i] - top) / temperature)});
  Keep(scratch, scratch.size());
}

constexpr double kMinLogScale = -7;

uint8_t PixelOf(double x) {
  return static_cast<uint8_t>(std::lround((std::clamp(x, -1.0, 1.0) + 1) * 127.5));
}

int64_t DrawComponent(std::span<const float> logits, double temperature, Random& random) {
  const int64_t most_likely = ArgMax(logits);
  if (temperature == 0) return most_likely;
  const auto weight = [&](size_t i) {
    return std::exp((static_cast<double>(logits[i]) - logits[most_likely]) / temperature);
  };
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += weight(i);
  double u = random.Uniform() * sum;
  for (size_t i = 0; i < logits.size(); ++i) {
    u -= weight(i);
    if (u < 0) return static_cast<int64_t>(i);
  }
  return most_likely;
}

void CheckMixture(std::span<const float> params, int64_t mixtures) {
  constexpr std::string_view kKinds[] = {"logit", "mean", "log-scale", "coefficient"};
  for (size_t j = 0; j < params.size(); ++j) {
    if (std::isfinite(params[j])) continue;
    const int64_t group = static_cast<int64_t>(j) / mixtures;
    const int64_t per_channel = params.size() == static_cast<size_t>(3 * mixtures) ? 2 : 3;
    const int64_t kind = group == 0 ? 0 : 1 + (group - 1) % per_channel;
    const int64_t channel = group == 0 ? 0 : (group - 1) / per_channel;
    Fail("sampler", "mixture parameters must be finite, but {} {} of channel {} is {}",
         kKinds[kind], static_cast<int64_t>(j) % mixtures, channel, params[j]);
  }
}

}  // namespace

std::span<const Candidate> Candidates(std::span<const float> logits, const SamplerOptions& options,
                                      SamplerScratch& scratch) {
  CheckDraw(logits, options);
  if (options.temperature == 0) {
    scratch.assign(1, {ArgMax(logits), 1.0});
    return scratch;
  }
  Weigh(logits, options.temperature, scratch);
  const bool limited = options.top_k > 0 && options.top_k < static_cast<int64_t>(scratch.size());
  if (limited) {
    std::nth_element(scratch.begin(), scratch.begin() + options.top_k, scratch.end(), MoreLikely);
    Keep(scratch, options.top_k);
  }
  std::sort(scratch.begin(), scratch.end(), MoreLikely);
  if (options.top_p < 1) Keep(scratch, NucleusSize(scratch, options.top_p));
  return scratch;
}

void PenaliseRepetition(std::span<const int32_t> recent, double penalty, std::span<float> logits) {
  Check(penalty > 0 && std::isfinite(penalty), "sampler",
        "the repetition penalty must be above 0, but is {}", penalty);
  for (size_t i = 0; i < recent.size(); ++i) {
    const int32_t symbol = recent[i];
    Check(symbol >= -1 && symbol < static_cast<int64_t>(logits.size()), "sampler",
          "recent symbols must be from -1 to {}, but one is {}", logits.size() - 1, symbol);
    const bool again = std::find(recent.begin(), recent.begin() + i, symbol) != recent.begin() + i;
    if (symbol < 0 || again) continue;
    float& x = logits[symbol];
    x = static_cast<float>(x > 0 ? x / penalty : x * penalty);
  }
}

int64_t SampleCategorical(std::span<const float> logits, const SamplerOptions& options,
                          Random& random, SamplerScratch& scratch) {
  CheckDraw(logits, options);
  if (options.temperature == 0) return ArgMax(logits);
  if (options.top_k > 0 || options.top_p < 1)
    return Draw(Candidates(logits, options, scratch), random.Uniform());
  Weigh(logits, options.temperature, scratch);
  return Draw(scratch, random.Uniform());
}

void SampleLogisticMixture(std::span<const float> params, double temperature, Random& random,
                           std::span<uint8_t> pixels) {
  const size_t per_component = pixels.size() == 1 ? 3 : 10;
  const size_t kinds = pixels.size() == 1 ? 2 : 3;  // means, log-scales, coefficients
  Check((pixels.size() == 1 || pixels.size() == 3) && !params.empty() &&
            params.size() % per_component == 0,
        "sampler", "a mixture needs 3M parameters for 1 channel or 10M for 3, but got {} for {}",
        params.size(), pixels.size());
  CheckTemperature(temperature);
  const int64_t M = params.size() / per_component;
  CheckMixture(params, M);
  const int64_t i = DrawComponent(params.first(M), temperature, random);
  double x[3] = {};
  for (size_t c = 0; c < pixels.size(); ++c) {
    const auto at = [&](size_t channel, int64_t kind) {
      return static_cast<double>(params[M + (channel * kinds + kind) * M + i]);
    };
    double mean = at(c, 0);
    for (size_t j = 0; j < c; ++j) mean += std::tanh(at(c == 1 ? 0 : 1 + j, 2)) * x[j];
    if (temperature > 0) {
      const double u = random.Uniform();  // u = 0 gives -inf, which the clamp takes to pixel 0
      mean +=
          (std::log(u) - std::log1p(-u)) * temperature * std::exp(std::max(at(c, 1), kMinLogScale));
    }
    pixels[c] = PixelOf(mean);
    x[c] = pixels[c] / 127.5 - 1;
  }
}

}  // namespace linattn
