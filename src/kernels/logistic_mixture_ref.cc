#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/logistic_mixture.h"

namespace linattn {
namespace {

double Sigma(double z) { return z >= 0 ? 1 / (1 + std::exp(-z)) : std::exp(z) / (1 + std::exp(z)); }
double Softplus(double z) { return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))); }

struct Bin {
  double log_p, d_mean, d_raw_scale;
};

// The four branches of the definition, each with its own derivatives by u, d and s.
Bin EvaluateBin(int pixel, double mean, double raw_scale) {
  const double x = pixel / 127.5 - 1, s = raw_scale < -7 ? -7 : raw_scale, inv = std::exp(-s);
  const double u = (x - mean) * inv, d = inv / 255, a = u + d, b = u - d;
  const double probability = Sigma(a) - Sigma(b);
  const double slope_a = Sigma(a) * Sigma(-a), slope_b = Sigma(b) * Sigma(-b);
  double log_p, d_u, d_d = 0, d_s = 0;
  if (x < -0.999) {
    log_p = -Softplus(-a);
    d_u = d_d = Sigma(-a);
  } else if (x > 0.999) {
    log_p = -Softplus(b);
    d_u = -Sigma(b);
    d_d = Sigma(b);
  } else if (probability > 1e-5) {
    log_p = std::log(probability);
    d_u = (slope_a - slope_b) / probability;
    d_d = (slope_a + slope_b) / probability;
  } else {
    log_p = u - s - 2 * Softplus(u) - std::log(127.5);
    d_u = 1 - 2 * Sigma(u);
    d_s = -1;
  }
  // du/ds = -u, dd/ds = -d, du/dmean = -inv.
  return {log_p, -inv * d_u, raw_scale < -7 ? 0 : d_s - u * d_u - d * d_d};
}

double LogSumExp(const std::vector<double>& values) {
  const double top = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (double value : values) sum += std::exp(value - top);
  return top + std::log(sum);
}

// One position: p is its row of parameters; g, unless null, gets d loglik / d p.
double Position(const double* p, const uint8_t* pixel, int64_t M, int64_t channels, double* g) {
  const int64_t block = (channels == 1 ? 2 : 3) * M;  // columns a channel, after the M logits
  const auto mean_at = [&](int64_t c, int64_t i) { return M + c * block + i; };
  const auto coefficient_at = [&](int64_t c, int64_t i) { return mean_at(c, i) + 2 * M; };
  // mu_1 uses a_0 x_0; mu_2 uses a_1 x_0 and a_2 x_1.
  const auto tie = [&](int64_t c, int64_t j) { return c == 1 ? 0 : 1 + j; };

  std::vector<double> joint(M);
  std::vector<Bin> bins(channels * M);
  double x[3] = {};
  for (int64_t c = 0; c < channels; ++c) x[c] = pixel[c] / 127.5 - 1;
  for (int64_t i = 0; i < M; ++i) {
    joint[i] = p[i];
    for (int64_t c = 0; c < channels; ++c) {
      double mean = p[mean_at(c, i)];
      for (int64_t j = 0; j < c; ++j) mean += std::tanh(p[coefficient_at(tie(c, j), i)]) * x[j];
      bins[c * M + i] = EvaluateBin(pixel[c], mean, p[mean_at(c, i) + M]);
      joint[i] += bins[c * M + i].log_p;
    }
  }
  const double joint_lse = LogSumExp(joint), logit_lse = LogSumExp(std::vector(p, p + M));
  if (g == nullptr) return joint_lse - logit_lse;
  for (int64_t i = 0; i < M; ++i) {
    const double posterior = std::exp(joint[i] - joint_lse);
    g[i] = posterior - std::exp(p[i] - logit_lse);
    for (int64_t c = 0; c < channels; ++c) {
      const Bin& bin = bins[c * M + i];
      g[mean_at(c, i)] = posterior * bin.d_mean;
      g[mean_at(c, i) + M] = posterior * bin.d_raw_scale;
      for (int64_t j = 0; j < c; ++j) {
        const int64_t at = coefficient_at(tie(c, j), i);
        g[at] = posterior * bin.d_mean * x[j] * (1 - std::tanh(p[at]) * std::tanh(p[at]));
      }
    }
  }
  return joint_lse - logit_lse;
}

int64_t CheckRef(const Array& params, const Array& pixels, const Array& per_position) {
  const int64_t channels = pixels.rank == 2 ? pixels.shape[1] : 1;
  const int64_t per_component = channels == 1 ? 3 : 10;
  Check(params.rank == 2 && params.dtype == DType::kF64 && params.stride[1] == 1 &&
            params.shape[1] > 0 && params.shape[1] % per_component == 0,
        "logistic_mixture", "params must be F64 [P,{}M], rows contiguous, but is {} {}",
        per_component, NameOf(params.dtype), params.ShapeString());
  Check(pixels.dtype == DType::kU8 && pixels.shape[0] == params.shape[0] &&
            (channels == 1 || channels == 3) && pixels.contiguous(),
        "logistic_mixture", "pixels must be contiguous U8 [P] or [P,3] with P={}, but is {} {}",
        params.shape[0], NameOf(pixels.dtype), pixels.ShapeString());
  Check(per_position.rank == 1 && per_position.dtype == DType::kF64 &&
            per_position.shape[0] == params.shape[0],
        "logistic_mixture", "loglik and d_loglik must be F64 [{}], but got {} {}", params.shape[0],
        NameOf(per_position.dtype), per_position.ShapeString());
  return channels;
}

}  // namespace

void LogisticMixtureForwardRef(const Array& params, const Array& pixels, const Array& loglik) {
  const int64_t channels = CheckRef(params, pixels, loglik);
  const int64_t M = params.shape[1] / (channels == 1 ? 3 : 10);
  for (int64_t t = 0; t < params.shape[0]; ++t)
    *loglik.At<double>(t) =
        Position(params.At<double>(t), pixels.At<uint8_t>(t), M, channels, nullptr);
}

void LogisticMixtureBackwardRef(const Array& params, const Array& pixels, const Array& d_loglik,
                                const Array& d_params) {
  const int64_t channels = CheckRef(params, pixels, d_loglik);
  Check(d_params.rank == 2 && d_params.dtype == DType::kF64 && d_params.stride[1] == 1 &&
            d_params.shape == params.shape,
        "logistic_mixture", "d_params must be F64 {}, rows contiguous, but is {} {}",
        params.ShapeString(), NameOf(d_params.dtype), d_params.ShapeString());
  const int64_t columns = params.shape[1], M = columns / (channels == 1 ? 3 : 10);
  std::vector<double> gradient(columns);
  for (int64_t t = 0; t < params.shape[0]; ++t) {
    Position(params.At<double>(t), pixels.At<uint8_t>(t), M, channels, gradient.data());
    for (int64_t j = 0; j < columns; ++j)
      *d_params.At<double>(t, j) = *d_loglik.At<double>(t) * gradient[j];
  }
}

}  // namespace linattn
