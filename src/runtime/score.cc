#include "runtime/score.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/logistic_mixture.h"

namespace linattn {
namespace {

// log softmax(logits)[symbol]
double LogProbability(std::span<const float> logits, int32_t symbol) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - most);
  return logits[symbol] - most - std::log(sum);
}

// [P] log likelihood of each symbol from outputs [P, width].
std::vector<float> TokenLogLikelihood(const ModelConfig& c, std::span<const float> outputs,
                                      std::span<const int32_t> symbols) {
  const int64_t P = static_cast<int64_t>(symbols.size()), width = c.outputs();
  std::vector<float> loglik(P);
  if (c.head == "logistic_mixture") {
    const std::vector<uint8_t> pixels(symbols.begin(), symbols.end());
    LogisticMixtureForward(MakeArray(outputs.data(), {P, width}), MakeArray(pixels.data(), {P}),
                           MakeArray(loglik.data(), {P}));
    return loglik;
  }
#pragma omp parallel for
  for (int64_t p = 0; p < P; ++p) {
    loglik[p] = static_cast<float>(LogProbability(outputs.subspan(p * width, width), symbols[p]));
  }
  return loglik;
}

}  // namespace

std::vector<double> ScoreSequences(FullPass& pass, std::span<const int32_t> symbols,
                                   std::span<const int64_t> labels, int64_t B) {
  const ModelConfig& c = pass.model().config();
  Check(c.causal, "score", "the model must be causal, but is bidirectional");
  Check(B >= 1 && !symbols.empty() && symbols.size() % B == 0, "score",
        "symbols must be [B,T] with B and T at least 1, but are {} for B = {}", symbols.size(), B);
  Check(c.classes == 0 || static_cast<int64_t>(labels.size()) == B, "score",
        "labels must be [{}] for a conditional model, but are {}", B, labels.size());
  const int64_t T = static_cast<int64_t>(symbols.size()) / B;
  std::vector<int32_t> tokens(symbols.size());
  for (int64_t b = 0; b < B; ++b) {
    const int64_t label = c.classes > 0 ? labels[b] : 0;
    Check(label >= 0 && label < std::max<int64_t>(1, c.classes), "score",
          "label {} must be from 0 to {}, but is {}", b, c.classes - 1, label);
    tokens[b * T] = static_cast<int32_t>(c.start_token(label));
    std::copy_n(symbols.begin() + b * T, T - 1, tokens.begin() + b * T + 1);
    const int32_t last = symbols[b * T + T - 1];  // the others are checked as inputs
    Check(last >= 0 && last < c.vocab, "score", "token {} must be from 0 to {}, but is {}", T - 1,
          c.vocab - 1, last);
  }
  const std::vector<float> loglik = TokenLogLikelihood(c, pass.Run(tokens, B), symbols);
  std::vector<double> nats(B);
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t < T; ++t) {
      const float x = loglik[b * T + t];
      Check(std::isfinite(x), "score",
            "the likelihood must be finite, but is {} at token {} of sequence {}", x, t, b);
      nats[b] -= x;
    }
  }
  return nats;
}

}  // namespace linattn
