#include "kernels/ctc.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ctc.cc"
// clang-format off
#include <hwy/foreach_target.h>  // first, or each target would be compiled twice
#include <hwy/highway.h>
// clang-format on

#include "kernels/exp-inl.h"
#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kNever = -1e30f;  // ln 0, finite so that differences of two of them are not NaN

// One utterance: states s are the labels with blanks around them, S = 2 L + 1. Rows of states have
// two numbers of room on either side, kNever, so that no neighbour needs a test.
class CtcUtterance {
 public:
  CtcUtterance(const float* logits, int64_t T, int64_t C, const std::vector<int32_t>& states)
      : logits_(logits), T_(T), C_(C), S_(std::ssize(states)), states_(states) {
    stride_ = S_ + 4;
    emit_.assign(T_ * stride_, kNever);
    alpha_.assign(T_ * stride_, kNever);
    skip_.assign(stride_, kNever);
    for (int64_t s = 3; s < S_; s += 2)
      if (states_[s] != states_[s - 2]) skip_[s + 2] = 0;
  }

  double Loss() {  // NaN if a logit is not finite
    if (!Emissions()) return std::nan("");
    double offset = 0;  // what alpha's rows have lost so far
    float* first = Row(alpha_, 0);
    for (int64_t s = 0; s < std::min<int64_t>(2, S_); ++s) first[s] = Row(emit_, 0)[s];
    offset += Settle(first);
    for (int64_t t = 1; t < T_; ++t) {
      Advance(Row(alpha_, t - 1), Row(emit_, t), Row(alpha_, t));
      offset += Settle(Row(alpha_, t));
    }
    const float* last = Row(alpha_, T_ - 1);
    const double a = last[S_ - 1], b = S_ > 1 ? last[S_ - 2] : kNever;
    const double top = std::max(a, b);
    if (top < kNever / 2) return std::numeric_limits<double>::infinity();
    return -(offset + top + std::log(std::exp(a - top) + std::exp(b - top)));
  }

  // After Loss.
  void Gradient(float* d_logits) {
    std::vector<float> later(stride_, kNever), beta(stride_, kNever), joint(stride_, kNever);
    for (int64_t s = std::max<int64_t>(0, S_ - 2); s < S_; ++s) beta[s + 2] = 0;
    for (int64_t t = T_ - 1; t >= 0; --t) {
      if (t + 1 < T_) Retreat(Row(emit_, t + 1), later.data() + 2, beta.data() + 2);
      Settle(beta.data() + 2);
      Posterior(Row(alpha_, t), beta.data() + 2, joint.data() + 2);
      float* d = d_logits + t * C_;
      Softmax(t, d);
      for (int64_t s = 0; s < S_; ++s) d[states_[s]] -= joint[s + 2];
    }
  }

 private:
  float* Row(std::vector<float>& table, int64_t t) { return table.data() + t * stride_ + 2; }

  void Softmax(int64_t t, float* y) const {
    const float* x = logits_ + t * C_;
    const FloatVector shift = hn::Set(FloatTag(), log_sum_[t]);
    ForEachVector(C_, [&](auto load, auto store, int64_t i)
                          HWY_ATTR { store(ExpOrNaN(hn::Sub(load(x + i), shift)), y + i); });
  }

  // Each state's log-probability in each frame. False if a logit is not finite.
  bool Emissions() {
    log_sum_.resize(T_);
    std::vector<float> y(C_);
    for (int64_t t = 0; t < T_; ++t) {
      const float* x = logits_ + t * C_;
      log_sum_[t] = *std::max_element(x, x + C_);
      Softmax(t, y.data());
      double sum = 0;
      for (const float p : y) sum += p;
      log_sum_[t] += static_cast<float>(std::log(sum));
      if (!std::isfinite(log_sum_[t])) return false;
      float* e = Row(emit_, t);
      for (int64_t s = 0; s < S_; ++s) e[s] = x[states_[s]] - log_sum_[t];
    }
    return true;
  }

  // Subtracts a row's largest, and returns it.
  float Settle(float* row) const {
    const float top = MaxOf(1, row, S_);
    if (top < kNever / 2) return 0;
    const FloatVector shift = hn::Set(FloatTag(), top), never = hn::Set(FloatTag(), kNever);
    ForEachVector(S_, [&](auto load, auto store, int64_t i) HWY_ATTR {
      store(hn::Max(hn::Sub(load(row + i), shift), never), row + i);
    });
    return top;
  }

  // ln(e^a + e^b + e^c)
  static HWY_INLINE FloatVector LogAdd(FloatVector a, FloatVector b, FloatVector c) {
    const FloatVector top = hn::Max(hn::Max(a, b), c);
    const FloatVector sum = hn::Add(hn::Add(ExpOrNaN(hn::Sub(a, top)), ExpOrNaN(hn::Sub(b, top))),
                                    ExpOrNaN(hn::Sub(c, top)));
    return hn::Add(top, hn::Log(FloatTag(), sum));
  }

  void Advance(const float* before, const float* emit, float* now) const {
    const float* skip = skip_.data() + 2;
    ForEachVector(S_, [&](auto load, auto store, int64_t s) HWY_ATTR {
      const FloatVector sum = LogAdd(load(before + s), load(before + s - 1),
                                     hn::Add(load(before + s - 2), load(skip + s)));
      store(hn::Add(sum, load(emit + s)), now + s);
    });
  }

  // beta, of frames behind t + 1, becomes that of frames behind t. later: room.
  void Retreat(const float* emit, float* later, float* beta) const {
    ForEachVector(S_, [&](auto load, auto store, int64_t s)
                          HWY_ATTR { store(hn::Add(load(beta + s), load(emit + s)), later + s); });
    const float* skip = skip_.data() + 2;
    ForEachVector(S_, [&](auto load, auto store, int64_t s) HWY_ATTR {
      store(LogAdd(load(later + s), load(later + s + 1),
                   hn::Add(load(later + s + 2), load(skip + s + 2))),
            beta + s);
    });
  }

  // Of each state in a frame, given the labels: sums to 1.
  void Posterior(const float* alpha, const float* beta, float* joint) const {
    ForEachVector(S_, [&](auto load, auto store, int64_t s)
                          HWY_ATTR { store(hn::Add(load(alpha + s), load(beta + s)), joint + s); });
    const float top = MaxOf(1, joint, S_);
    double sum = 0;
    ForEachVector(S_, [&](auto load, auto store, int64_t s) HWY_ATTR {
      store(ExpOrNaN(hn::Sub(load(joint + s), hn::Set(FloatTag(), top))), joint + s);
    });
    for (int64_t s = 0; s < S_; ++s) sum += joint[s];
    Scale(static_cast<float>(1 / sum), joint, S_);
  }

  const float* logits_;
  int64_t T_, C_, S_, stride_ = 0;
  const std::vector<int32_t>& states_;
  std::vector<float> emit_, alpha_;  // [T, stride_]
  std::vector<float> skip_;          // [stride_] 0 where a state may follow the last but one
  std::vector<float> log_sum_;       // [T]
};

double RunUtterance(const float* logits, const int64_t* TC, const std::vector<int32_t>& states,
                    float* d_logits) {
  CtcUtterance utterance(logits, TC[0], TC[1], states);
  const double loss = utterance.Loss();
  if (d_logits != nullptr && std::isfinite(loss)) utterance.Gradient(d_logits);
  return loss;
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {
HWY_EXPORT(RunUtterance);
}  // namespace

void CtcLoss(const CtcInputs& in, const CtcOutputs& out) {
  CheckCtc(in, out, DType::kF32);
  const int64_t B = in.logits.shape[0], T = in.logits.shape[1], C = in.logits.shape[2];
  const bool gradient = out.d_logits.present();
#pragma omp parallel for schedule(dynamic)
  for (int64_t b = 0; b < B; ++b) {
    const int64_t shape[] = {in.lengths[b], C};
    float* d = gradient ? out.d_logits.At<float>(b) : nullptr;
    if (gradient) std::fill_n(d, T * C, 0.0f);
    if (shape[0] < CtcFramesNeeded(in.labels[b]) || shape[0] == 0) {
      const bool empty = shape[0] == 0 && in.labels[b].empty();
      out.loss[b] = empty ? 0 : std::numeric_limits<double>::infinity();
      continue;
    }
    const std::vector<int32_t> states = WithBlanks(in.labels[b], in.blank);
    out.loss[b] = HWY_DYNAMIC_DISPATCH(RunUtterance)(in.logits.At<float>(b), shape, states, d);
    if (gradient && std::isnan(out.loss[b])) std::fill_n(d, shape[0] * C, std::nanf(""));
  }
}

}  // namespace linattn
#endif  // HWY_ONCE
