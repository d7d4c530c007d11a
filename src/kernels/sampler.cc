#include "kernels/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/logit_weights.h"

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

// Returns the largest logit.
float CheckDraw(std::span<const float> logits, const SamplerOptions& options) {
  CheckSampler(options);
  Check(!logits.empty(), "sampler", "there must be at least one logit, but got none");
  const float largest = LargestOrNaN(logits);
  if (std::isfinite(largest)) return largest;
  for (size_t i = 0; i < logits.size(); ++i)
    Check(std::isfinite(logits[i]), "sampler", "logits must be finite, but logit {} of {} is {}", i,
          logits.size(), logits[i]);
  return largest;
}

bool MoreLikely(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.symbol < b.symbol;
}

// Symbols with a weight above `least`, and the first `ties` of those with just this one; `mass` is
// their sum.
struct Nucleus {
  float least = 0;
  int64_t ties = 0;
  double mass = 0;
};

// The largest weight of which enough(mass and count of the weights from it on) holds. It must hold
// from `least` on.
template <class Enough>
float Threshold(SamplerScratch& scratch, float least, const Enough& enough) {
  // Floats that are not negative order like their bits. When few weights are left between the
  // bounds, the others are not asked again.
  constexpr uint32_t kFew = 1 << 18, kFirst = std::bit_cast<uint32_t>(0x1p-8f);
  uint32_t low = std::bit_cast<uint32_t>(least), high = std::bit_cast<uint32_t>(2.0f);
  std::span<const float> asked = scratch.weights;
  WeightMass above;
  bool all = true;
  for (uint32_t middle = kFirst; high - low > 1; middle = low + (high - low) / 2) {
    if (middle <= low) continue;
    if (all && high - low <= kFew) {
      const float from = std::bit_cast<float>(low), to = std::bit_cast<float>(high);
      scratch.some.resize(scratch.weights.size() + kWeightRoom);
      const int64_t count = WeightsBetween(asked, from, to, scratch.some.data());
      above = MassFrom(asked, to);
      asked = std::span(scratch.some).first(static_cast<size_t>(count));
      all = false;
    }
    WeightMass mass = MassFrom(asked, std::bit_cast<float>(middle));
    mass.mass += above.mass, mass.count += above.count;
    (enough(mass) ? low : high) = middle;
  }
  return std::bit_cast<float>(low);
}

WeightMass MassAbove(std::span<const float> weights, float least) {
  return MassFrom(weights, std::nextafter(least, 2.0f));
}

// The k most likely.
Nucleus TopK(SamplerScratch& scratch, int64_t k) {
  const std::span<const float> weights = scratch.weights;
  const float least = Threshold(scratch, 0, [&](const WeightMass& m) { return m.count >= k; });
  const WeightMass above = MassAbove(weights, least);
  const int64_t ties = k - above.count;
  return {least, ties, above.mass + static_cast<double>(ties) * least};
}

// How many weights of this size it takes to reach `mass` beyond `above`.
int64_t TiesFor(double mass, double above, float weight) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil((mass - above) / weight)));
}

// The smallest part of the most likely ones that has this mass.
Nucleus TopP(SamplerScratch& scratch, const Nucleus& all, double mass) {
  const std::span<const float> weights = scratch.weights;
  const float least =
      Threshold(scratch, all.least, [&](const WeightMass& m) { return m.mass >= mass; });
  if (least == 0) return all;
  const WeightMass above = MassAbove(weights, least);
  const int64_t present = MassFrom(weights, least).count - above.count;
  const int64_t ties =
      std::min(TiesFor(mass, above.mass, least), least == all.least ? all.ties : present);
  return {least, ties, above.mass + static_cast<double>(ties) * least};
}

// What the options leave of exp((logits - top) / temperature).
Nucleus Weigh(std::span<const float> logits, float top, const SamplerOptions& options,
              SamplerScratch& scratch) {
  scratch.weights.resize(logits.size());
  const double factor =
      std::min(1 / options.temperature, double{std::numeric_limits<float>::max()});
  LogitWeights(logits, top, static_cast<float>(factor), scratch.weights.data());
  const auto size = static_cast<int64_t>(logits.size());
  Nucleus left{0, size, 0};
  if (options.top_k > 0 && options.top_k < size)
    left = TopK(scratch, options.top_k);
  else
    left.mass = MassFrom(scratch.weights, 0).mass;
  const double share = std::max(options.top_p - kMassSlack, kMassSlack);
  return options.top_p < 1 ? TopP(scratch, left, share * left.mass) : left;
}

// The symbol of that weight which `before` others of the same weight precede.
int64_t SymbolOf(std::span<const float> weights, float weight, int64_t before) {
  auto at = std::find(weights.begin(), weights.end(), weight);
  for (; before > 0; --before) at = std::find(at + 1, weights.end(), weight);
  return at - weights.begin();
}

// Inverse of the cumulative sum over a nucleus, the most likely first.
int64_t DrawByLikelihood(SamplerScratch& scratch, const Nucleus& all, double u) {
  const std::span<const float> weights = scratch.weights;
  const float weight =
      Threshold(scratch, all.least, [&](const WeightMass& m) { return m.mass > u; });
  if (weight == 0) return SymbolOf(weights, 1, 0);  // u is the mass itself, by rounding
  const WeightMass above = MassAbove(weights, weight);
  const int64_t present =
      weight == all.least ? all.ties : MassFrom(weights, weight).count - above.count;
  const auto before = static_cast<int64_t>((u - above.mass) / weight);
  return SymbolOf(weights, weight, std::clamp<int64_t>(before, 0, present - 1));
}

// The same over all symbols in their own order; rounding that leaves u beyond the last one draws
// the last symbol of any weight.
int64_t DrawInOrder(std::span<const float> weights, double u) {
  constexpr size_t kBlock = 256;
  int64_t last = 0;
  for (size_t begin = 0; begin < weights.size(); begin += kBlock) {
    const auto block = weights.subspan(begin, std::min(kBlock, weights.size() - begin));
    const double mass = MassFrom(block, 0).mass;
    const bool here = u < mass;
    for (size_t i = 0; i < block.size() && (here || begin + kBlock >= weights.size()); ++i) {
      if (block[i] == 0) continue;
      last = static_cast<int64_t>(begin + i);
      u -= block[i];
      if (u < 0) return last;
    }
    if (here) return last;
    u -= mass;
  }
  return last;
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

void CheckSampler(const SamplerOptions& options) {
  CheckTemperature(options.temperature);
  Check(options.top_k >= 0, "sampler", "top_k must be at least 0 (no limit), but is {}",
        options.top_k);
  Check(options.top_p > 0 && options.top_p <= 1, "sampler", "top_p must be in (0,1], but is {}",
        options.top_p);
}

std::span<const Candidate> Candidates(std::span<const float> logits, const SamplerOptions& options,
                                      SamplerScratch& scratch) {
  const float top = CheckDraw(logits, options);
  std::vector<Candidate>& kept = scratch.candidates;
  if (options.temperature == 0) {
    kept.assign(1, {ArgMax(logits), 1.0});
    return kept;
  }
  Nucleus left = Weigh(logits, top, options, scratch);
  kept.clear();
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float weight = scratch.weights[i];
    if (weight < left.least || (weight == left.least && left.ties-- <= 0)) continue;
    kept.push_back(
        {static_cast<int64_t>(i), std::exp((double{logits[i]} - top) / options.temperature)});
    sum += kept.back().probability;
  }
  for (Candidate& c : kept) c.probability /= sum;
  std::sort(kept.begin(), kept.end(), MoreLikely);
  return kept;
}

void PenaliseRepetition(std::span<const int32_t> recent, double penalty,
                        std::span<const float> logits, std::span<float> penalised) {
  Check(penalty > 0 && std::isfinite(penalty), "sampler",
        "the repetition penalty must be above 0, but is {}", penalty);
  std::copy(logits.begin(), logits.end(), penalised.begin());
  for (const int32_t symbol : recent) {
    Check(symbol >= -1 && symbol < static_cast<int64_t>(logits.size()), "sampler",
          "recent symbols must be from -1 to {}, but one is {}", logits.size() - 1, symbol);
    if (symbol < 0) continue;
    const float x = logits[symbol];
    penalised[symbol] = static_cast<float>(x > 0 ? x / penalty : x * penalty);
  }
}

int64_t SampleCategorical(std::span<const float> logits, const SamplerOptions& options,
                          Random& random, SamplerScratch& scratch) {
  const float top = CheckDraw(logits, options);
  if (options.temperature == 0) return ArgMax(logits);
  const Nucleus left = Weigh(logits, top, options, scratch);
  const double u = random.Uniform() * left.mass;
  return options.top_k > 0 || options.top_p < 1 ? DrawByLikelihood(scratch, left, u)
                                                : DrawInOrder(scratch.weights, u);
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
