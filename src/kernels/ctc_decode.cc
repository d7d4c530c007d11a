#include "kernels/ctc_decode.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace linattn {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double LogAdd(double a, double b) {
  const double top = std::max(a, b);
  return top == kNever ? kNever : top + std::log1p(std::exp(std::min(a, b) - top));
}

int64_t Frames(std::span<const float> logits, int64_t C, int64_t blank) {
  Check(C >= 1 && std::ssize(logits) % C == 0 && blank >= 0 && blank < C, "ctc",
        "logits must be [T,C] and the blank in [0,C), but are {} for C = {} and {}", logits.size(),
        C, blank);
  return std::ssize(logits) / C;
}

// Label sequences as a tree: each is another with a label behind it.
class Prefixes {
 public:
  static constexpr int32_t kRoot = 0;
  int32_t Child(int32_t node, int32_t label) {
    const auto [found, fresh] = children_.try_emplace({node, label}, std::ssize(nodes_));
    if (fresh) nodes_.push_back({node, label});
    return static_cast<int32_t>(found->second);
  }
  int32_t label(int32_t node) const { return nodes_[node].second; }
  std::vector<int32_t> Labels(int32_t node) const {
    std::vector<int32_t> labels;
    for (; node != kRoot; node = nodes_[node].first) labels.push_back(label(node));
    std::reverse(labels.begin(), labels.end());
    return labels;
  }

 private:
  std::vector<std::pair<int32_t, int32_t>> nodes_ = {{-1, -1}};  // parent, label
  std::map<std::pair<int32_t, int32_t>, int64_t> children_;
};

// ln probabilities of a prefix, by whether its last frame is a blank.
struct Ends {
  double blank = kNever, label = kNever;
  double total() const { return LogAdd(blank, label); }
};
using Beam = std::vector<std::pair<int32_t, Ends>>;

void KeepBest(Beam& beam, int64_t width) {
  const auto better = [](const auto& a, const auto& b) {
    const double x = a.second.total(), y = b.second.total();
    return x != y ? x > y : a.first < b.first;
  };
  std::sort(beam.begin(), beam.end(), better);
  if (std::ssize(beam) > width) beam.resize(width);
}

Beam Extend(const Beam& beam, const std::vector<double>& y, int64_t blank, Prefixes& prefixes) {
  std::map<int32_t, Ends> next;
  for (const auto& [node, ends] : beam) {
    const double total = ends.total();
    Ends& same = next[node];
    same.blank = LogAdd(same.blank, total + y[blank]);
    const int32_t last = prefixes.label(node);
    if (last >= 0) same.label = LogAdd(same.label, ends.label + y[last]);
    for (int32_t c = 0; c < std::ssize(y); ++c) {
      if (c == blank) continue;
      // The last label again is another one only behind a blank.
      const double from = c == last ? ends.blank : total;
      if (from == kNever) continue;
      Ends& longer = next[prefixes.Child(node, c)];
      longer.label = LogAdd(longer.label, from + y[c]);
    }
  }
  return {next.begin(), next.end()};
}

// Of frame t.
std::vector<double> LogSoftmax(std::span<const float> x, int64_t t) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float v : x) sum += std::exp(v - top);
  const double scale = top + std::log(sum);
  Check(std::isfinite(scale), "ctc", "logits must be finite, but those of frame {} are not", t);
  std::vector<double> y(x.begin(), x.end());
  for (double& v : y) v -= scale;
  return y;
}

}  // namespace

int32_t CtcGreedy::Push(std::span<const float> scores) {
  const auto best =
      static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  const bool repeated = std::exchange(last_, best) == best;
  return repeated || best == blank_ ? -1 : best;
}

std::vector<int32_t> CtcGreedyLabels(std::span<const float> logits, int64_t C, int64_t blank) {
  const int64_t T = Frames(logits, C, blank);
  CtcGreedy greedy(blank);
  std::vector<int32_t> labels;
  for (int64_t t = 0; t < T; ++t) {
    const int32_t label = greedy.Push(logits.subspan(t * C, C));
    if (label >= 0) labels.push_back(label);
  }
  return labels;
}

std::vector<CtcHypothesis> CtcBeam(std::span<const float> logits, int64_t C, int64_t blank,
                                   int64_t width) {
  const int64_t T = Frames(logits, C, blank);
  Check(width >= 1, "ctc", "the beam's width must be at least 1, but is {}", width);
  Prefixes prefixes;
  Beam beam = {{Prefixes::kRoot, {0, kNever}}};
  for (int64_t t = 0; t < T; ++t) {
    beam = Extend(beam, LogSoftmax(logits.subspan(t * C, C), t), blank, prefixes);
    KeepBest(beam, width);
  }
  std::vector<CtcHypothesis> best;
  for (const auto& [node, ends] : beam) best.push_back({prefixes.Labels(node), ends.total()});
  return best;
}

int64_t EditDistance(std::span<const int32_t> wanted, std::span<const int32_t> said) {
  std::vector<int64_t> row(said.size() + 1);
  std::iota(row.begin(), row.end(), int64_t{0});
  for (size_t i = 0; i < wanted.size(); ++i) {
    int64_t diagonal = std::exchange(row[0], static_cast<int64_t>(i) + 1);
    for (size_t j = 0; j < said.size(); ++j) {
      const int64_t changed = diagonal + (wanted[i] != said[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace linattn
