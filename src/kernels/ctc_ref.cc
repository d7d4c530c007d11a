#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/ctc.h"

namespace linattn {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double LogAdd(double a, double b) {
  const double top = std::max(a, b);
  return top == kNever ? kNever : top + std::log1p(std::exp(std::min(a, b) - top));
}

// [T][C] log softmax
std::vector<std::vector<double>> LogSoftmax(const Array& logits, int64_t b, int64_t T) {
  std::vector<std::vector<double>> y(T, std::vector<double>(logits.shape[2]));
  for (int64_t t = 0; t < T; ++t) {
    const double* x = logits.At<double>(b, t);
    const double top = *std::max_element(x, x + logits.shape[2]);
    double sum = 0;
    for (size_t c = 0; c < y[t].size(); ++c) sum += std::exp(x[c] - top);
    for (size_t c = 0; c < y[t].size(); ++c) y[t][c] = x[c] - top - std::log(sum);
  }
  return y;
}

using Table = std::vector<std::vector<double>>;  // [T][S]

// ln of the probability of frames 0..t that end in state s: forward, with frame t; else of frames
// t+1.. that begin behind state s.
Table Forward(const Table& y, const std::vector<int32_t>& l) {
  const size_t S = l.size();
  Table a(y.size(), std::vector<double>(S, kNever));
  for (size_t t = 0; t < y.size(); ++t) {
    for (size_t s = 0; s < S; ++s) {
      double sum = t == 0 ? (s < 2 ? 0 : kNever) : a[t - 1][s];
      if (t > 0 && s >= 1) sum = LogAdd(sum, a[t - 1][s - 1]);
      if (t > 0 && s >= 2 && l[s] != l[s - 2] && s % 2 == 1) sum = LogAdd(sum, a[t - 1][s - 2]);
      a[t][s] = sum + y[t][l[s]];
    }
  }
  return a;
}

Table Backward(const Table& y, const std::vector<int32_t>& l) {
  const size_t S = l.size(), T = y.size();
  Table b(T, std::vector<double>(S, kNever));
  for (size_t s = S < 2 ? 0 : S - 2; s < S; ++s) b[T - 1][s] = 0;
  for (size_t t = T - 1; t-- > 0;) {
    const auto later = [&](size_t s) { return b[t + 1][s] + y[t + 1][l[s]]; };
    for (size_t s = 0; s < S; ++s) {
      double sum = later(s);
      if (s + 1 < S) sum = LogAdd(sum, later(s + 1));
      if (s + 2 < S && l[s] != l[s + 2] && s % 2 == 1) sum = LogAdd(sum, later(s + 2));
      b[t][s] = sum;
    }
  }
  return b;
}

void Gradient(const Table& y, const std::vector<int32_t>& l, double log_p, const Array& d,
              int64_t utterance) {
  const Table a = Forward(y, l), b = Backward(y, l);
  for (size_t t = 0; t < y.size(); ++t) {
    double* g = d.At<double>(utterance, static_cast<int64_t>(t));
    for (size_t c = 0; c < y[t].size(); ++c) g[c] = std::exp(y[t][c]);
    for (size_t s = 0; s < l.size(); ++s) g[l[s]] -= std::exp(a[t][s] + b[t][s] - log_p);
  }
}

}  // namespace

int64_t CtcFramesNeeded(std::span<const int32_t> labels) {
  int64_t frames = std::ssize(labels);
  for (size_t i = 1; i < labels.size(); ++i) frames += labels[i] == labels[i - 1];
  return frames;
}

std::vector<int32_t> WithBlanks(std::span<const int32_t> labels, int64_t blank) {
  std::vector<int32_t> states = {static_cast<int32_t>(blank)};
  for (const int32_t label : labels) {
    states.push_back(label);
    states.push_back(static_cast<int32_t>(blank));
  }
  return states;
}

void CheckCtc(const CtcInputs& in, const CtcOutputs& out, DType dtype) {
  const Array& x = in.logits;
  Check(x.rank == 3 && x.dtype == dtype && x.contiguous(), "ctc",
        "logits must be [B,T,C] {}, contiguous, but are {} {}", NameOf(dtype), x.ShapeString(),
        NameOf(x.dtype));
  const int64_t B = x.shape[0], T = x.shape[1], C = x.shape[2];
  Check(std::ssize(in.lengths) == B && std::ssize(in.labels) == B && std::ssize(out.loss) == B,
        "ctc", "lengths, labels and losses must be {}, one an utterance, but are {}, {} and {}", B,
        in.lengths.size(), in.labels.size(), out.loss.size());
  Check(in.blank >= 0 && in.blank < C, "ctc", "the blank must be in [0,{}), but is {}", C,
        in.blank);
  const Array& d = out.d_logits;
  Check(!d.present() || (d.rank == 3 && d.dtype == dtype && d.shape == x.shape && d.contiguous()),
        "ctc", "d_logits must be {} {}, contiguous, but are {} {}", x.ShapeString(), NameOf(dtype),
        d.ShapeString(), NameOf(d.dtype));
  for (int64_t b = 0; b < B; ++b) {
    Check(in.lengths[b] >= 0 && in.lengths[b] <= T, "ctc",
          "utterance {}: the length must be from 0 to {} frames, but is {}", b, T, in.lengths[b]);
    for (const int32_t label : in.labels[b])
      Check(label >= 0 && label < C && label != in.blank, "ctc",
            "utterance {}: labels must be in [0,{}) and not the blank {}, but one is {}", b, C,
            in.blank, label);
  }
}

void CtcLossRef(const CtcInputs& in, const CtcOutputs& out) {
  CheckCtc(in, out, DType::kF64);
  const int64_t C = in.logits.shape[2];
  if (out.d_logits.present()) std::fill_n(out.d_logits.At<double>(), out.d_logits.size(), 0.0);
  for (size_t b = 0; b < in.labels.size(); ++b) {
    const int64_t T = in.lengths[b];
    if (T < CtcFramesNeeded(in.labels[b]) || T == 0) {
      out.loss[b] = T == 0 && in.labels[b].empty() ? 0 : -kNever;
      continue;
    }
    const Table y = LogSoftmax(in.logits, static_cast<int64_t>(b), T);
    const std::vector<int32_t> l = WithBlanks(in.labels[b], in.blank);
    const std::vector<double> last = Forward(y, l).back();
    const double log_p = l.size() == 1 ? last[0] : LogAdd(last[l.size() - 1], last[l.size() - 2]);
    out.loss[b] = -log_p;
    if (!out.d_logits.present()) continue;
    if (std::isfinite(log_p)) {
      Gradient(y, l, log_p, out.d_logits, static_cast<int64_t>(b));
    } else {
      std::fill_n(out.d_logits.At<double>(static_cast<int64_t>(b)), T * C, std::nan(""));
    }
  }
}

}  // namespace linattn
