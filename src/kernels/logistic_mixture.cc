#include "kernels/logistic_mixture.h"

#include <omp.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/logistic_mixture.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/logistic_bin-inl.h"

#ifndef LINATTN_LOGISTIC_MIXTURE_ONCE
#define LINATTN_LOGISTIC_MIXTURE_ONCE
namespace linattn {

// One call, taken apart. loglik, d_loglik or d_params may have null data.
struct MixtureJob {
  Array params, d_params, pixels, loglik, d_loglik;
  int64_t positions = 0, mixtures = 0, channels = 0;
  const float* x_of_pixel = nullptr;  // [256]

  int64_t columns() const { return params.shape[1]; }
  int64_t channel_columns() const { return (channels == 1 ? 2 : 3) * mixtures; }
  // First column of channel c's means; log-scales and coefficients follow, M each.
  int64_t means(int64_t c) const { return mixtures + c * channel_columns(); }
  // First column of the coefficients that tie channel c's means to channel j < c: a_0; a_1, a_2.
  int64_t coefficients(int64_t c, int64_t j) const {
    return means(c == 1 ? 0 : 1 + j) + 2 * mixtures;
  }
};

}  // namespace linattn
#endif  // LINATTN_LOGISTIC_MIXTURE_ONCE

HWY_BEFORE_NAMESPACE();
namespace linattn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Positions lie along the lanes: a block is [columns, N], the transpose of N rows.

// Lanes from `count` on repeat the last row.
static void LoadBlock(const MixtureJob& job, int64_t first, int64_t count, int64_t lanes,
                      float* block) {
  const int64_t columns = job.columns();
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int64_t row = first + std::min(lane, count - 1);
    if (job.params.dtype == DType::kF32) {
      const float* from = job.params.At<float>(row);
      for (int64_t j = 0; j < columns; ++j) block[j * lanes + lane] = from[j];
    } else {
      const BF16* from = job.params.At<BF16>(row);
      for (int64_t j = 0; j < columns; ++j) block[j * lanes + lane] = ToFloat(from[j]);
    }
  }
}

static void StoreBlock(const MixtureJob& job, int64_t first, int64_t count, int64_t lanes,
                       const float* block) {
  const int64_t columns = job.columns();
  for (int64_t lane = 0; lane < count; ++lane) {
    if (job.d_params.dtype == DType::kF32) {
      float* to = job.d_params.At<float>(first + lane);
      for (int64_t j = 0; j < columns; ++j) to[j] = block[j * lanes + lane];
    } else {
      BF16* to = job.d_params.At<BF16>(first + lane);
      for (int64_t j = 0; j < columns; ++j) to[j] = ToBF16(block[j * lanes + lane]);
    }
  }
}

// mu_ci of component i, from the block's rows and the channels before c.
HWY_INLINE Vec Mean(const MixtureJob& job, const float* block, int64_t c, int64_t i, const Vec* x) {
  const D d;
  const int64_t lanes = hn::Lanes(d);
  Vec mean = hn::Load(d, block + (job.means(c) + i) * lanes);
  for (int64_t j = 0; j < c; ++j) {
    const int64_t coefficient = job.coefficients(c, j) + i;
    mean = hn::MulAdd(hn::Tanh(d, hn::Load(d, block + coefficient * lanes)), x[j], mean);
  }
  return mean;
}

// joint[i] = w_i + sum_c log P_ci. grad's rows of means and log-scales become the derivatives of
// sum_c log P_ci, unless grad is null.
static void Components(const MixtureJob& job, const float* block, const Vec* x, float* joint,
                       float* grad) {
  const D d;
  const int64_t lanes = hn::Lanes(d), M = job.mixtures;
  for (int64_t i = 0; i < M; ++i) {
    Vec total = hn::Load(d, block + i * lanes);
    for (int64_t c = 0; c < job.channels; ++c) {
      const int64_t mean = job.means(c) + i, scale = mean + M;
      const BinTerm bin =
          EvaluateBin(x[c], Mean(job, block, c, i, x), hn::Load(d, block + scale * lanes));
      total = hn::Add(total, bin.log_p);
      if (grad == nullptr) continue;
      hn::Store(bin.d_mean, d, grad + mean * lanes);
      hn::Store(bin.d_raw_scale, d, grad + scale * lanes);
    }
    hn::Store(total, d, joint + i * lanes);
  }
}

// log sum_i exp(rows[i]).
HWY_INLINE Vec LogSumExp(const float* rows, int64_t count) {
  const D d;
  const int64_t lanes = hn::Lanes(d);
  Vec top = hn::Load(d, rows);
  for (int64_t i = 1; i < count; ++i) top = hn::Max(top, hn::Load(d, rows + i * lanes));
  Vec sum = hn::Zero(d);
  for (int64_t i = 0; i < count; ++i)
    sum = hn::Add(sum, hn::Exp(d, hn::Sub(hn::Load(d, rows + i * lanes), top)));
  return hn::Add(top, hn::Log(d, sum));
}

// 0, or NaN in the lanes of positions with a non-finite parameter: max and exp would swallow it.
HWY_INLINE Vec Poison(const MixtureJob& job, const float* block) {
  const D d;
  const int64_t lanes = hn::Lanes(d);
  Vec poison = hn::Zero(d);
  for (int64_t j = 0; j < job.columns(); ++j) {
    const Vec value = hn::Load(d, block + j * lanes);
    poison = hn::Add(poison, hn::Sub(value, value));
  }
  return poison;
}

// From the derivatives of log P_ci to those of loglik, times d_loglik; fills every row of grad.
static void Gradient(const MixtureJob& job, const float* block, const Vec* x, const float* joint,
                     Vec joint_lse, Vec logit_lse, Vec d_loglik, float* grad) {
  const D d;
  const int64_t lanes = hn::Lanes(d), M = job.mixtures;
  const auto at = [&](int64_t column) { return grad + column * lanes; };
  for (int64_t i = 0; i < M; ++i) {
    const Vec posterior = hn::Exp(d, hn::Sub(hn::Load(d, joint + i * lanes), joint_lse));
    const Vec prior = hn::Exp(d, hn::Sub(hn::Load(d, block + i * lanes), logit_lse));
    hn::Store(hn::Mul(d_loglik, hn::Sub(posterior, prior)), d, at(i));
    const Vec weight = hn::Mul(d_loglik, posterior);
    for (int64_t c = 0; c < job.channels; ++c) {
      const int64_t mean = job.means(c) + i, scale = mean + M;
      const Vec d_mean = hn::Mul(weight, hn::Load(d, at(mean)));
      hn::Store(d_mean, d, at(mean));
      hn::Store(hn::Mul(weight, hn::Load(d, at(scale))), d, at(scale));
      for (int64_t j = 0; j < c; ++j) {
        const int64_t coefficient = job.coefficients(c, j) + i;
        const Vec t = hn::Tanh(d, hn::Load(d, block + coefficient * lanes));
        const Vec slope = hn::NegMulAdd(t, t, hn::Set(d, 1.0f));
        hn::Store(hn::Mul(hn::Mul(d_mean, x[j]), slope), d, at(coefficient));
      }
    }
  }
}

// Positions [begin, end). scratch: [2 columns + M, N] floats, aligned.
void MixtureRange(const MixtureJob& job, int64_t begin, int64_t end, float* HWY_RESTRICT scratch) {
  const D d;
  const int64_t lanes = hn::Lanes(d), columns = job.columns();
  const bool backward = job.d_params.data != nullptr;
  float* block = scratch;
  float* joint = block + columns * lanes;
  float* grad = backward ? joint + job.mixtures * lanes : nullptr;
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
  for (int64_t first = begin; first < end; first += lanes) {
    const int64_t count = std::min(lanes, end - first);
    LoadBlock(job, first, count, lanes, block);
    Vec x[3] = {hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (int64_t c = 0; c < job.channels; ++c) {
      for (int64_t lane = 0; lane < lanes; ++lane)
        buffer[lane] =
            job.x_of_pixel[*job.pixels.At<uint8_t>(first + std::min(lane, count - 1), c)];
      x[c] = hn::Load(d, buffer);
    }
    Components(job, block, x, joint, grad);
    const Vec poison = Poison(job, block);
    const Vec joint_lse = LogSumExp(joint, job.mixtures);
    const Vec logit_lse = LogSumExp(block, job.mixtures);
    if (job.loglik.data != nullptr) {
      hn::Store(hn::Add(hn::Sub(joint_lse, logit_lse), poison), d, buffer);
      for (int64_t lane = 0; lane < count; ++lane)
        *job.loglik.At<float>(first + lane) = buffer[lane];
    }
    if (!backward) continue;
    for (int64_t lane = 0; lane < lanes; ++lane)
      buffer[lane] = *job.d_loglik.At<float>(first + std::min(lane, count - 1));
    Gradient(job, block, x, joint, joint_lse, logit_lse, hn::Add(hn::Load(d, buffer), poison),
             grad);
    StoreBlock(job, first, count, lanes, grad);
  }
}

int64_t FloatLanes() { return hn::Lanes(D()); }

}  // namespace linattn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(MixtureRange);
HWY_EXPORT(FloatLanes);

constexpr std::string_view kWhere = "logistic_mixture";

const float* XOfPixel() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> x;
    for (int pixel = 0; pixel < 256; ++pixel) x[pixel] = static_cast<float>(pixel / 127.5 - 1);
    return x;
  }();
  return table.data();
}

void CheckVector(const Array& a, std::string_view name, int64_t positions) {
  Check(a.rank == 1 && a.shape[0] == positions && a.dtype == DType::kF32, kWhere,
        "{} must be F32 [P] = [{}], but is {} {}", name, positions, NameOf(a.dtype),
        a.ShapeString());
}

void CheckRows(const Array& a, std::string_view name) {
  Check(a.rank == 2 && (a.dtype == DType::kF32 || a.dtype == DType::kBF16), kWhere,
        "{} must be F32 or BF16 [P,columns], but is {} {}", name, NameOf(a.dtype), a.ShapeString());
  Check(a.stride[1] == 1 || a.shape[1] <= 1, kWhere,
        "{}' last axis must be contiguous, but has stride {}", name, a.stride[1]);
}

MixtureJob MakeJob(const Array& params, const Array& pixels) {
  CheckRows(params, "params");
  MixtureJob job;
  job.params = params;
  job.pixels = pixels;
  job.x_of_pixel = XOfPixel();
  job.positions = params.shape[0];
  job.channels = pixels.rank == 2 ? pixels.shape[1] : 1;
  Check((pixels.rank == 1 || pixels.rank == 2) && pixels.dtype == DType::kU8 &&
            pixels.shape[0] == job.positions && (job.channels == 1 || job.channels == 3),
        kWhere, "pixels must be U8 [P], [P,1] or [P,3] with P={}, but is {} {}", job.positions,
        NameOf(pixels.dtype), pixels.ShapeString());
  const int64_t per_component = job.channels == 1 ? 3 : 10;
  Check(params.shape[1] > 0 && params.shape[1] % per_component == 0, kWhere,
        "params must be [P,{}M] for {} channel(s), but has shape {}", per_component, job.channels,
        params.ShapeString());
  job.mixtures = params.shape[1] / per_component;
  return job;
}

// Lanes do not meet, so how blocks are shared out cannot change a result.
void RunJob(const MixtureJob& job) {
  const int64_t lanes = HWY_DYNAMIC_DISPATCH(FloatLanes)();
  const int64_t blocks = (job.positions + lanes - 1) / lanes;
  const int64_t scratch_floats = (2 * job.columns() + job.mixtures) * lanes;
  constexpr int64_t kBlocksWorthAThread = 8;
  const int threads =
      static_cast<int>(std::clamp<int64_t>(blocks / kBlocksWorthAThread, 1, omp_get_max_threads()));
  const auto scratch = hwy::AllocateAligned<float>(threads * scratch_floats);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int part = 0; part < threads; ++part) {
    const int64_t begin = blocks * part / threads * lanes;
    const int64_t end = std::min(job.positions, blocks * (part + 1) / threads * lanes);
    HWY_DYNAMIC_DISPATCH(MixtureRange)
    (job, begin, end, scratch.get() + part * scratch_floats);
  }
}

}  // namespace

void LogisticMixtureForward(const Array& params, const Array& pixels, const Array& loglik) {
  MixtureJob job = MakeJob(params, pixels);
  CheckVector(loglik, "loglik", job.positions);
  job.loglik = loglik;
  RunJob(job);
}

void LogisticMixtureBackward(const Array& params, const Array& pixels, const Array& d_loglik,
                             const Array& d_params, const Array& loglik) {
  MixtureJob job = MakeJob(params, pixels);
  CheckVector(d_loglik, "d_loglik", job.positions);
  CheckRows(d_params, "d_params");
  Check(d_params.shape[0] == params.shape[0] && d_params.shape[1] == params.shape[1], kWhere,
        "d_params must have params' shape {}, but has {}", params.ShapeString(),
        d_params.ShapeString());
  if (loglik.present()) CheckVector(loglik, "loglik", job.positions);
  job.d_loglik = d_loglik;
  job.d_params = d_params;
  job.loglik = loglik;
  RunJob(job);
}

}  // namespace linattn
#endif  // HWY_ONCE
