#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "base/plot.h"
#include "base/random.h"
#include "bench/mixer_problem.h"
#include "kernels/mixer.h"
#include "lab/lab.h"

// Pairs of keys and values are written into each mixer's memory, one after the other, and each key
// is asked for. An answer is right if, of all stored values, the one that belongs to the key is
// nearest to what is read. Nothing is trained: this is what the memory itself can hold.
namespace linattn {
namespace {

constexpr int64_t kChannels = 32;  // K = V

void Normalise(std::vector<double>& row) {
  double sum = 0;
  for (const double x : row) sum += x * x;
  for (double& x : row) x /= std::sqrt(sum);
}

// Unit rows; any two keys have about `similarity` as their cosine.
std::vector<float> UnitRows(int64_t rows, double similarity, Random& random) {
  const auto draw = [&] {
    std::vector<double> row(kChannels);
    for (double& x : row) x = random.Normal();
    Normalise(row);
    return row;
  };
  const std::vector<double> shared = draw();
  std::vector<float> all;
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<double> row = draw();
    for (int64_t j = 0; j < kChannels; ++j)
      row[j] = std::sqrt(similarity) * shared[j] + std::sqrt(1 - similarity) * row[j];
    Normalise(row);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

struct Items {
  int64_t D;
  std::vector<float> keys, values;  // [D,K], [D,V]
};

void Forward(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out) {
  mixer.forward(in, out, bench::Scratch(mixer, in).get());
}

// What softmax reads for every key: it keeps them all.
std::vector<float> ReadSoftmax(const Mixer& mixer, Items& items, std::vector<float>& keys) {
  std::vector<float> o(items.D * kChannels);
  MixerInputs in;
  in.q = MakeArray(keys.data(), {1, items.D, 1, kChannels});
  in.k = in.q;
  in.v = MakeArray(items.values.data(), {1, items.D, 1, kChannels});
  in.options.cross = true;  // every query sees every key
  in.options.causal = false;
  MixerOutputs out;
  out.o = MakeArray(o.data(), {1, items.D, 1, kChannels});
  Forward(mixer, in, out);
  return o;
}

// Writes all items, then reads o = S^T phi(q), or that over phi(q).z, from the final state.
std::vector<float> ReadState(const Mixer& mixer, Items& items, std::vector<float>& keys,
                             float strength) {
  const FeatureMap& map = FeatureMapByName(mixer.feature_map);
  const int64_t D = items.D, F = map.Features(kChannels);
  const float hold = mixer.fixed_decay ? static_cast<float>(mixer.fixed_decay(7, 8)) : 0.0f;
  std::vector<float> g(D * F, hold), beta(D, strength), S(F * kChannels), z(F), o(D * kChannels);
  MixerInputs in;
  in.q = in.k = MakeArray(keys.data(), {1, D, 1, kChannels});
  in.v = MakeArray(items.values.data(), {1, D, 1, kChannels});
  if (mixer.decay == Decay::kScalar) in.g = MakeArray(g.data(), {1, D, 1});
  if (mixer.decay == Decay::kPerChannel) in.g = MakeArray(g.data(), {1, D, 1, F});
  if (mixer.write == Write::kDelta) in.beta = MakeArray(beta.data(), {1, D, 1});
  MixerOutputs out;
  out.o = MakeArray(o.data(), {1, D, 1, kChannels});
  out.ST = MakeArray(S.data(), {1, 1, F, kChannels});
  if (mixer.normalised) out.zT = MakeArray(z.data(), {1, 1, F});
  Forward(mixer, in, out);

  std::vector<float> Q(D * F);
  map.Forward(keys.data(), D, kChannels, Q.data());
  for (int64_t i = 0; i < D; ++i) {
    double norm = 0;
    for (int64_t f = 0; f < F; ++f) norm += Q[i * F + f] * z[f];
    for (int64_t c = 0; c < kChannels; ++c) {
      double sum = 0;
      for (int64_t f = 0; f < F; ++f) sum += Q[i * F + f] * S[f * kChannels + c];
      o[i * kChannels + c] = static_cast<float>(mixer.normalised ? sum / (norm + 1e-6) : sum);
    }
  }
  return o;
}

double Cosine(const float* a, const float* b) {
  double ab = 0, aa = 0, bb = 0;
  for (int64_t c = 0; c < kChannels; ++c) ab += a[c] * b[c], aa += a[c] * a[c], bb += b[c] * b[c];
  return ab / std::sqrt(aa * bb + 1e-30);
}

// The share of keys whose own value is, of all stored ones, the nearest to what was read.
double Accuracy(const Items& items, const std::vector<float>& o) {
  int64_t right = 0;
  for (int64_t i = 0; i < items.D; ++i) {
    int64_t best = 0;
    double most = -2;
    for (int64_t j = 0; j < items.D; ++j) {
      const double cosine = Cosine(&o[i * kChannels], &items.values[j * kChannels]);
      if (cosine > most) most = cosine, best = j;
    }
    right += best == i;
  }
  return static_cast<double>(right) / static_cast<double>(items.D);
}

double MeanAccuracy(const Mixer& mixer, const std::vector<Items>& trials, float length,
                    float strength) {
  double sum = 0;
  for (Items items : trials) {
    std::vector<float> keys = items.keys;
    for (float& x : keys) x *= length;
    sum +=
        Accuracy(items, mixer.family == Family::kCache ? ReadSoftmax(mixer, items, keys)
                                                       : ReadState(mixer, items, keys, strength));
  }
  return sum / static_cast<double>(trials.size());
}

// The best of several lengths of keys and, of the delta rule, write strengths, as trained
// projections would have found them: softmax and exponential features are as sharp as their inputs
// are long.
double BestAccuracy(const Mixer& mixer, const std::vector<Items>& trials) {
  double best = 0;
  for (const float length : {1.0f, 3.0f, 9.0f, 27.0f}) {
    for (const float strength : {1.0f, 0.5f, 0.2f}) {
      if (strength < 1 && mixer.write != Write::kDelta) continue;
      best = std::max(best, MeanAccuracy(mixer, trials, length, strength));
    }
  }
  return best;
}

std::vector<Items> Draw(int64_t D, double similarity, int64_t trials, uint64_t seed) {
  std::vector<Items> drawn;
  for (int64_t trial = 0; trial < trials; ++trial) {
    Random random(seed, static_cast<uint64_t>(trial * 100'000 + D));
    drawn.push_back({D, UnitRows(D, similarity, random), UnitRows(D, 0, random)});
  }
  return drawn;
}

std::vector<const Mixer*> Compared() {
  std::vector<const Mixer*> mixers = {&MixerByName("softmax")};
  for (const Mixer* mixer : AllMixers())
    if (mixer->family == Family::kState) mixers.push_back(mixer);
  return mixers;
}

// Percent of so many items that are found.
Series Found(const Mixer& mixer, const std::vector<int64_t>& counts, double similarity,
             const LabOptions& options) {
  const int64_t trials = options.quick ? 2 : 8;
  Series series{std::string(mixer.name), {}, true};
  for (const int64_t D : counts)
    series.points.emplace_back(
        D, 100 * BestAccuracy(mixer, Draw(D, similarity, trials, options.seed)));
  return series;
}

// The largest number of items of which nine in ten are found.
int64_t Capacity(const Series& series) {
  int64_t most = 0;
  for (const auto& [D, accuracy] : series.points) {
    if (accuracy < 90) break;
    most = static_cast<int64_t>(D);
  }
  return most;
}

int64_t StateBytes(const Mixer& mixer) {
  const int64_t F = FeatureMapByName(mixer.feature_map).Features(kChannels);
  const MixerDims dims{.B = 1, .H = 1, .HV = 1, .K = kChannels, .F = F, .V = kChannels, .N = 1};
  return mixer.state_floats(dims, {}, 0) * static_cast<int64_t>(sizeof(float));
}

// Curves that are the same one share a line of the plot, and its name.
void Add(Plot& plot, Series series) {
  for (Series& there : plot.series) {
    if (there.points != series.points) continue;
    there.name += ", " + series.name;
    return;
  }
  plot.series.push_back(std::move(series));
}

// Nine in ten items are found up to so many: of each mixer, in their order.
struct Capacities {
  std::vector<std::string> names;
  std::vector<int64_t> bytes, random, similar;
  int64_t most;  // tried

  std::string List(const std::vector<int64_t>& counts) const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < names.size(); ++i)
      parts.push_back(
          fmt::format("{} {}{}", names[i], counts[i], counts[i] == most ? " or more" : ""));
    return fmt::format("{}", fmt::join(parts, ", "));
  }
};

// How large the states are: what the last of them takes, then those that differ.
std::string Sizes(const Capacities& c) {
  const auto states = std::span(c.bytes).subspan(1);
  std::vector<std::string> others;
  const int64_t usual = states.back();
  for (size_t i = 1; i < c.names.size(); ++i)
    if (c.bytes[i] != usual) others.push_back(fmt::format("{} {}", c.names[i], c.bytes[i]));
  return fmt::format("{} bytes a state{}", usual,
                     others.empty() ? "" : fmt::format(" ({})", fmt::join(others, ", ")));
}

// softmax comes first in `c`, the fixed states behind it.
std::string Conclusions(const Capacities& c) {
  const auto states = std::span(c.random).subspan(1);
  const auto [fewest, most] = std::ranges::minmax_element(states);
  std::vector<std::string> best, losses;
  for (size_t i = 1; i < c.names.size(); ++i) {
    if (c.random[i] == *most) best.push_back(c.names[i]);
    losses.push_back(fmt::format("{} {} of {}", c.names[i], c.similar[i], c.random[i]));
  }
  return fmt::format(
      "Of the fixed states {} hold{} most random keys, {:.2g} a channel, and the weakest {:.2g}; "
      "softmax {}. Of that, keys that share most of their direction leave: {}.",
      fmt::join(best, ", "), best.size() == 1 ? "s" : "", static_cast<double>(*most) / kChannels,
      static_cast<double>(*fewest) / kChannels,
      c.random[0] == c.most ? "found all that were tried" : fmt::format("held {}", c.random[0]),
      fmt::join(losses, ", "));
}

std::string Paragraph(const Capacities& c) {
  return fmt::format(
      "Keys and values of {} channels, one head, {}, nothing trained, gates open (retention: its "
      "slowest head), the best of four lengths of keys and three strengths of writing. Nine in ten "
      "items are found with random keys up to: {}; with similar keys (cosine 0.7) up to: {}. {} By "
      "construction: elu+1 and random features are positive, so that any two keys overlap and "
      "answers are means of many values; the delta rule first takes off what a key already reads; "
      "with open gates gated_delta and kda are delta, and gla is simple_gla, since a gate buys "
      "room by forgetting, which exact lookup never wants. A trained model would learn keys that "
      "are not similar.",
      kChannels, Sizes(c), c.List(c.random), c.List(c.similar), Conclusions(c));
}

}  // namespace

LabResult RunRetrieval(const LabOptions& options) {
  std::vector<int64_t> counts = {2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
  if (options.quick) counts = {4, 16, 32, 64, 128};
  const auto mixers = Compared();
  Capacities capacities{{}, {}, {}, {}, counts.back()};
  for (const Mixer* mixer : mixers) {
    capacities.names.emplace_back(mixer->name);
    capacities.bytes.push_back(mixer->family == Family::kState ? StateBytes(*mixer) : 0);
  }
  LabResult result;
  nlohmann::json figures;
  int64_t done = 0;
  for (const double similarity : {0.0, 0.7}) {
    const bool similar = similarity > 0;
    Plot plot{fmt::format("exact lookup, cosine of two keys about {}", similarity),
              {"items stored", true},
              {"found, %"}};
    for (const Mixer* mixer : mixers) {
      Series series = Found(*mixer, counts, similarity, options);
      if (options.progress)
        options.progress(++done, 2 * std::ssize(mixers), std::string(mixer->name));
      const int64_t capacity = Capacity(series);
      (similar ? capacities.similar : capacities.random).push_back(capacity);
      figures.push_back({{"mixer", series.name},
                         {"similarity", similarity},
                         {"accuracy", series.points},
                         {"items_at_90_percent", capacity}});
      Add(plot, std::move(series));
    }
    result.pictures.push_back({similar ? "retrieval-similar" : "retrieval-random", SvgPlot(plot),
                               "Share of keys whose own value is the nearest to what is read."});
  }
  result.paragraph = Paragraph(capacities);
  result.figures = figures.dump(1);
  return result;
}

}  // namespace linattn
