#include "kernels/packed_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/huge_pages.h"

namespace linattn {
namespace {

constexpr std::string_view kNames[] = {"f32", "bf16", "int8"};

// Round to nearest even; NaN stays NaN.
uint32_t BFloat16Bits(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// The scale of one output's weights: the largest becomes 127. NaN if any is not finite.
float Int8Scale(const float* w, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(w[i])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::abs(w[i]));
  }
  return largest / 127;
}

uint32_t Int8Bits(float x, float scale) {
  if (!(scale > 0)) return 128;
  const double steps = std::nearbyint(double{x} / scale);
  return static_cast<uint32_t>(static_cast<int>(std::clamp(steps, -127.0, 127.0)) + 128);
}

// One weight in its place of the word.
uint32_t WeightBits(WeightType type, float x, float scale, int64_t part) {
  switch (type) {
    case WeightType::kFloat32:
      return std::bit_cast<uint32_t>(x);
    case WeightType::kBFloat16:
      return BFloat16Bits(x) << (16 * part);
    case WeightType::kInt8:
      return Int8Bits(x, scale) << (8 * part);
  }
  return 0;
}

// Zeroed.
std::shared_ptr<Chunk[]> Allocate(int64_t lines) {
  const size_t bytes = static_cast<size_t>(lines) * sizeof(Chunk);
  void* memory = AllocateOnHugePages(bytes);
  Check(memory != nullptr, "matmul", "not enough memory for {} bytes of weights", bytes);
  return {static_cast<Chunk*>(memory), FreeOnHugePages};
}

}  // namespace

std::string_view WeightTypeName(WeightType type) { return kNames[static_cast<size_t>(type)]; }

WeightType ParseWeightType(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<WeightType>(i);
  Fail("dtype", "must be f32, bf16 or int8, but got '{}'", name);
}

PackedMatrix PackedMatrix::Pack(const float* weight, const float* bias, int64_t out, int64_t in,
                                WeightType type) {
  Check(out >= 1 && in >= 1, "matmul",
        "a weight must be [out,in] with both at least 1, but is [{},{}]", out, in);
  constexpr int64_t kMaxInt8 = 65536;  // 255 * 127 times that are 31 bits
  Check(type != WeightType::kInt8 || in <= kMaxInt8, "matmul",
        "an int8 weight takes at most {} inputs, but has {}", kMaxInt8, in);
  PackedMatrix w;
  w.in_ = in;
  w.out_ = out;
  w.type_ = type;
  const int64_t per_chunk = InputsPerChunk(type), padded = w.panels() * kPanel;
  w.memory_ = Allocate(w.panels() * w.panel_lines());
  for (int64_t p = 0; p < w.panels(); ++p)
    w.panels_.push_back(w.memory_[p * w.panel_lines()].words);
  if (type == WeightType::kInt8) w.scale_.resize(static_cast<size_t>(padded));
  for (int64_t o = 0; o < out; ++o) {
    const float* row = weight + o * in;
    const float scale = type == WeightType::kInt8 ? Int8Scale(row, in) : 1;
    if (type == WeightType::kInt8) w.scale_[o] = scale;
    uint32_t* const panel = w.memory_[o / kPanel * w.panel_lines()].words;
    uint32_t* const to = panel + o % kPanel;
    for (int64_t i = 0; i < in; ++i) {
      const int64_t word = i / per_chunk * kChunkWords + i % kChunkWords;
      to[word * kPanel] |= WeightBits(type, row[i], scale, i % per_chunk / kChunkWords);
    }
  }
  if (bias) {
    w.bias_.assign(bias, bias + out);
    w.bias_.resize(static_cast<size_t>(padded));
  }
  return w;
}

int64_t PackedMatrix::bytes() const {
  return static_cast<int64_t>(sizeof(Chunk)) * panels() * panel_lines() +
         static_cast<int64_t>(sizeof(float) * (bias_.size() + scale_.size()));
}

void LayOut(std::span<const PanelRange> order) {
  int64_t lines = 0;
  std::map<PackedMatrix*, std::vector<bool>> seen;
  for (const auto& [matrix, begin, end] : order) {
    lines += (end - begin) * matrix->panel_lines();
    std::vector<bool>& panels = seen[matrix];
    panels.resize(static_cast<size_t>(matrix->panels()));
    for (int64_t p = begin; p < end; ++p) {
      Check(p >= 0 && p < matrix->panels() && !panels[p], "matmul",
            "each of {} panels must be laid out once, but panel {} is not", matrix->panels(), p);
      panels[p] = true;
    }
  }
  for (const auto& [matrix, panels] : seen)
    Check(std::find(panels.begin(), panels.end(), false) == panels.end(), "matmul",
          "each of {} panels must be laid out, but one is left out", panels.size());
  const std::shared_ptr<Chunk[]> memory = Allocate(lines);
  Chunk* to = memory.get();
  for (const auto& [matrix, begin, end] : order)
    for (int64_t p = begin; p < end; ++p, to += matrix->panel_lines()) {
      std::memcpy(to, matrix->panel(p), sizeof(Chunk) * matrix->panel_lines());
      matrix->panels_[p] = to->words;
    }
  for (const auto& [matrix, panels] : seen) matrix->memory_ = memory;
}

}  // namespace linattn
