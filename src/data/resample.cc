#include "data/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"

namespace linattn {
namespace {

constexpr double kCutoff = 0.9, kBeta = 8;
constexpr int64_t kZeros = 24;  // zero crossings of the sinc on either side

double Sinc(double x) {
  const double y = std::numbers::pi * x;
  return std::abs(y) < 1e-9 ? 1 : std::sin(y) / y;
}
double Kaiser(double x) {  // x in [-1,1]; not scaled
  return std::abs(x) >= 1 ? 0 : std::cyl_bessel_i(0, kBeta * std::sqrt(1 - x * x));
}

}  // namespace

Resampler::Resampler(int64_t from, int64_t to) {
  constexpr int64_t kHighest = 1 << 20;
  Check(from > 0 && to > 0 && from <= kHighest && to <= kHighest, "audio",
        "sample rates must be from 1 to {} Hz, but are {} and {}", kHighest, from, to);
  const int64_t common = std::gcd(from, to);
  up_ = to / common, down_ = from / common;
  if (up_ == down_) return;
  const double cutoff =
      kCutoff * std::min(1.0, static_cast<double>(to) / static_cast<double>(from));
  const auto half = static_cast<int64_t>(std::ceil(kZeros / cutoff));
  taps_ = 2 * half;
  constexpr int64_t kLargest = 1 << 24;
  Check(up_ * taps_ <= kLargest, "audio",
        "{} Hz cannot be resampled to {} Hz: the ratio {}/{} needs too long a filter", from, to,
        up_, down_);
  filter_.resize(up_ * taps_);
  std::vector<double> taps(taps_);
  for (int64_t p = 0; p < up_; ++p) {
    double sum = 0;
    const auto at = [&](int64_t j) {  // distance of tap j from the output, in inputs
      return static_cast<double>(j - half + 1) - static_cast<double>(p) / static_cast<double>(up_);
    };
    const auto tap = [&](int64_t j) {
      return Sinc(cutoff * at(j)) * Kaiser(at(j) / static_cast<double>(half));
    };
    for (int64_t j = 0; j < taps_; ++j) sum += taps[j] = tap(j);
    for (int64_t j = 0; j < taps_; ++j)
      filter_[p * taps_ + j] = static_cast<float>(taps[j] / sum);  // a constant stays what it is
  }
  Reset();
}

void Resampler::Reset() {
  buffer_.assign(std::max<int64_t>(0, taps_ / 2 - 1), 0.0f);
  first_ = phase_ = 0;
}

void Resampler::Push(std::span<const float> samples, std::vector<float>& out) {
  if (taps_ == 0) {
    out.insert(out.end(), samples.begin(), samples.end());
    return;
  }
  buffer_.insert(buffer_.end(), samples.begin(), samples.end());
  while (first_ + taps_ <= std::ssize(buffer_)) {
    const float* x = buffer_.data() + first_;
    const float* h = filter_.data() + phase_ * taps_;
    float sum = 0;
    for (int64_t j = 0; j < taps_; ++j) sum += x[j] * h[j];
    out.push_back(sum);
    phase_ += down_;
    first_ += phase_ / up_;
    phase_ %= up_;
  }
  const int64_t used = std::min(first_, std::ssize(buffer_));
  buffer_.erase(buffer_.begin(), buffer_.begin() + used);
  first_ -= used;
}

void Resampler::Finish(std::vector<float>& out) {
  Push(std::vector<float>(taps_ / 2, 0.0f), out);
  Reset();
}

std::vector<float> Resampler::Save() const {
  std::vector<float> state = {static_cast<float>(first_), static_cast<float>(phase_)};
  state.insert(state.end(), buffer_.begin(), buffer_.end());
  return state;
}

void Resampler::Restore(std::span<const float> state) {
  const auto whole = [](float x, int64_t end) {
    return x >= 0 && x < static_cast<float>(end) && x == std::floor(x);
  };
  Check(state.size() >= 2 && std::ssize(state) <= 2 + std::max<int64_t>(taps_, 0) &&
            whole(state[0], down_ + 1) && whole(state[1], up_),
        "audio", "a resampler's state must be of the same rates, but is not");
  first_ = static_cast<int64_t>(state[0]), phase_ = static_cast<int64_t>(state[1]);
  buffer_.assign(state.begin() + 2, state.end());
}

}  // namespace linattn
