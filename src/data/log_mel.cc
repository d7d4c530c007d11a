#include "data/log_mel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/error.h"

namespace linattn {
namespace {

constexpr double kLowest = 20;
constexpr float kFloor = 1e-6f;

using Complex = std::complex<float>;

double Mel(double hertz) { return 1127 * std::log1p(hertz / 700); }

int64_t Samples(int64_t rate, double seconds) {
  return std::llround(static_cast<double>(rate) * seconds);
}

// In place, decimation in time; roots [n/2].
void Transform(std::vector<Complex>& x, const std::vector<Complex>& roots) {
  const size_t n = x.size();
  for (size_t i = 1, j = 0; i < n; ++i) {
    size_t bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(x[i], x[j]);
  }
  for (size_t half = 1; half < n; half *= 2) {
    const size_t step = n / (2 * half);
    for (size_t i = 0; i < n; i += 2 * half) {
      for (size_t k = 0; k < half; ++k) {
        const Complex a = x[i + k], b = x[i + half + k], w = roots[k * step];
        const Complex t(b.real() * w.real() - b.imag() * w.imag(),
                        b.real() * w.imag() + b.imag() * w.real());
        x[i + k] = a + t, x[i + half + k] = a - t;
      }
    }
  }
}

}  // namespace

LogMel::LogMel(int64_t rate, int64_t features)
    : window_(Samples(rate, 0.025)), hop_(Samples(rate, 0.010)) {
  Check(rate >= 1000 && rate <= 384000 && features >= 1 && features <= 4096, "audio",
        "frames must be of 1 to 4096 features at 1000 to 384000 Hz, but are of {} at {}", features,
        rate);
  size_ = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(window_)));
  constexpr double kTurn = 2 * std::numbers::pi;
  for (int64_t i = 0; i < window_; ++i)
    hann_.push_back(static_cast<float>(
        0.5 - 0.5 * std::cos(kTurn * static_cast<double>(i) / static_cast<double>(window_))));
  for (int64_t k = 0; k < size_ / 2; ++k)
    roots_.push_back(
        Complex(std::polar(1.0, -kTurn * static_cast<double>(k) / static_cast<double>(size_))));
  work_.resize(size_);
  power_.resize(size_ / 2 + 1);
  MakeTriangles(rate, features);
}

void LogMel::MakeTriangles(int64_t rate, int64_t features) {
  const double low = Mel(kLowest), high = Mel(static_cast<double>(rate) / 2);
  const double width = (high - low) / static_cast<double>(features + 1);
  const double bin_hz = static_cast<double>(rate) / static_cast<double>(size_);
  for (int64_t f = 0; f < features; ++f) {
    const double centre = low + static_cast<double>(f + 1) * width;
    Triangle triangle;
    for (int64_t k = 0; k <= size_ / 2; ++k) {
      const double weight = 1 - std::abs(Mel(static_cast<double>(k) * bin_hz) - centre) / width;
      if (weight <= 0) continue;
      if (triangle.weights.empty()) triangle.first = k;
      triangle.weights.push_back(static_cast<float>(weight));
    }
    triangles_.push_back(std::move(triangle));
  }
}

void LogMel::Push(std::span<const float> samples, std::vector<float>& frames) {
  pending_.insert(pending_.end(), samples.begin(), samples.end());
  int64_t at = 0;
  for (; at + window_ <= std::ssize(pending_); at += hop_) Frame(pending_.data() + at, frames);
  pending_.erase(pending_.begin(), pending_.begin() + at);
}

void LogMel::Frame(const float* samples, std::vector<float>& frames) {
  std::fill(work_.begin(), work_.end(), Complex());
  for (int64_t i = 0; i < window_; ++i) work_[i] = samples[i] * hann_[i];
  Transform(work_, roots_);
  for (int64_t k = 0; k <= size_ / 2; ++k) power_[k] = std::norm(work_[k]);
  for (const Triangle& triangle : triangles_) {
    float sum = kFloor;
    for (size_t i = 0; i < triangle.weights.size(); ++i)
      sum += triangle.weights[i] * power_[triangle.first + i];
    frames.push_back(std::log(sum));
  }
}

void LogMel::Restore(std::span<const float> state) {
  Check(std::ssize(state) < window_, "audio",
        "samples that fill no frame must be fewer than {}, but are {}", window_, state.size());
  pending_.assign(state.begin(), state.end());
}

}  // namespace linattn
