#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/plot.h"
#include "base/random.h"
#include "bench/mixer_problem.h"
#include "kernels/mixer.h"
#include "lab/lab.h"

// Queries are large where keys are very negative and the other way round, so that phi(q).phi(k),
// and with it the normaliser, is as small as one likes. The exact answer is float64 with eps = 0.
namespace linattn {
namespace {

constexpr int64_t kT = 48, kK = 16, kV = 16;

struct Case {
  std::string name;
  const char* map;
  double eps;
  bool bf16 = false;  // q, k and v are rounded to bfloat16
};

// In double; converted where float is asked for.
struct Tokens {
  std::vector<double> q, k, v, d_o;  // [T,K], [T,K], [T,V], [T,V]
};

Tokens Draw(double gap, uint64_t seed) {
  Random random(seed);
  Tokens t;
  const auto rounded = [&] { return static_cast<double>(static_cast<float>(random.Normal())); };
  for (int64_t i = 0; i < kT * kK; ++i) {
    const double side = i % kK < kK / 2 ? gap / 2 : -gap / 2;
    t.q.push_back(0.5 * rounded() + side);
    t.k.push_back(0.5 * rounded() - side);
  }
  for (int64_t i = 0; i < kT * kV; ++i) t.v.push_back(rounded()), t.d_o.push_back(rounded());
  return t;
}

struct Answer {
  std::vector<double> o, d_q;
};

template <class R>
std::vector<R> As(const std::vector<double>& x, bool bf16 = false) {
  std::vector<R> y;
  for (const double value : x) {
    const float f = static_cast<float>(value);
    y.push_back(static_cast<R>(bf16 ? ToFloat(ToBF16(f)) : f));
  }
  return y;
}

// R = double: the reference functions, on inputs as float holds them.
template <class R>
Answer Solve(const Tokens& t, const Case& c) {
  const Mixer& mixer = MixerByName("linear");
  std::vector<R> q = As<R>(t.q, c.bf16), k = As<R>(t.k, c.bf16), v = As<R>(t.v, c.bf16),
                 d_o = As<R>(t.d_o), o(kT * kV), norm(kT), d_q(kT * kK);
  MixerInputs in;
  in.q = MakeArray(q.data(), {1, kT, 1, kK}), in.k = MakeArray(k.data(), {1, kT, 1, kK});
  in.v = MakeArray(v.data(), {1, kT, 1, kV});
  in.options.feature_map = &FeatureMapByName(c.map);
  in.options.eps = c.eps;
  MixerOutputs out;
  out.o = MakeArray(o.data(), {1, kT, 1, kV}), out.norm = MakeArray(norm.data(), {1, kT, 1});
  MixerGradients grad;
  grad.d_o = MakeArray(d_o.data(), {1, kT, 1, kV}),
  grad.d_q = MakeArray(d_q.data(), {1, kT, 1, kK});
  if constexpr (std::is_same_v<R, double>) {
    mixer.forward_ref(in, out);
    mixer.backward_ref(in, out, grad);
  } else {
    const bench::Scratch scratch(mixer, in);
    mixer.forward(in, out, scratch.get());
    mixer.backward(in, out, grad, scratch.get());
  }
  return {{o.begin(), o.end()}, {d_q.begin(), d_q.end()}};
}

double Size(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

// NaN where there is no exact answer (0/0), infinity where there is one but ours is no number.
// Below 1e-8 nothing is worth telling apart, and a logarithmic axis needs a floor.
double RelativeError(const std::vector<double>& x, const std::vector<double>& truth) {
  if (!std::isfinite(Size(truth))) return NAN;
  std::vector<double> difference;
  for (size_t i = 0; i < x.size(); ++i) difference.push_back(x[i] - truth[i]);
  const double error = Size(difference) / Size(truth);
  return std::isfinite(error) ? std::max(error, 1e-8) : INFINITY;
}

// The first gap at which a result is 1% off.
std::string Fails(const Series& error) {
  for (const auto& [gap, value] : error.points) {
    if (std::isnan(value))
      return fmt::format("{} nowhere, but from a gap of {:.0f} on the exact answer is 0/0",
                         error.name, gap);
    if (value > 0.01) return fmt::format("{} from a gap of {:.0f} on", error.name, gap);
  }
  return fmt::format("{} nowhere", error.name);
}

}  // namespace

LabResult RunDenominator(const LabOptions& options) {
  const std::vector<Case> cases = {
      {"elu1, eps 1e-6", "elu1", 1e-6}, {"elu1, eps 1e-10", "elu1", 1e-10},
      {"elu1, eps 0", "elu1", 0},       {"elu1, eps 1e-6, bfloat16 inputs", "elu1", 1e-6, true},
      {"exp, eps 1e-6", "exp", 1e-6},   {"relu, eps 1e-6", "relu", 1e-6}};
  Plot forward{"error of the output", {"gap between queries and keys"}, {"relative error", true}};
  Plot backward{
      "error of the gradient of q", {"gap between queries and keys"}, {"relative error", true}};
  nlohmann::json figures = nlohmann::json::array();
  const double step = options.quick ? 8 : 2, most = 64;
  std::vector<std::string> outputs, gradients;
  for (const Case& c : cases) {
    Series output{c.name, {}}, gradient{c.name, {}};
    for (double gap = 0; gap <= most; gap += step) {
      const Tokens tokens = Draw(gap, options.seed + 1);
      const Answer truth = Solve<double>(tokens, {"", c.map, 0});
      const Answer answer = Solve<float>(tokens, c);
      output.points.emplace_back(gap, RelativeError(answer.o, truth.o));
      gradient.points.emplace_back(gap, RelativeError(answer.d_q, truth.d_q));
    }
    outputs.push_back(Fails(output));
    gradients.push_back(Fails(gradient));
    figures.push_back(
        {{"case", c.name}, {"output_error", output.points}, {"gradient_error", gradient.points}});
    forward.series.push_back(output);
    backward.series.push_back(gradient);
    if (options.progress) options.progress(std::ssize(outputs), std::ssize(cases), c.name);
  }
  LabResult result;
  result.paragraph = fmt::format(
      "q is shifted by +gap/2 in half of its {} channels and by -gap/2 in the others, k the "
      "opposite way: elu+1 decays as exp(x), so the normaliser falls as exp(-gap/2) and meets eps; "
      "exp, a softmax over the channels, as exp(-gap); relu becomes zero. Output 1% off: {}. "
      "Gradient of q 1% off: {}. What eps pulls towards zero has no gradient left to come back by. "
      "Remedies: an eps whose row above is still right (attn_eps; even with 0 the kernels divide "
      "by the smallest normal number at least), or keys and queries whose norms keep the features "
      "apart from zero.",
      kK, fmt::join(outputs, "; "), fmt::join(gradients, "; "));
  result.pictures = {
      {"denominator-error", SvgPlot(forward),
       "Relative error of o against float64 with eps = 0; below 1e-8 drawn at 1e-8."},
      {"denominator-gradient", SvgPlot(backward),
       "Relative error of the gradient of q, for the same cotangent; 1: nothing is left of it."}};
  result.figures = figures.dump(1);
  return result;
}

}  // namespace linattn
