#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace linattn {

// How the weights of a matrix product are stored; its activations follow. bfloat16: both rounded to
// nearest even, products and sums in float32. int8: weights with a scale for each output,
// activations with a scale for each row, sums in int32.
enum class WeightType : uint8_t { kFloat32, kBFloat16, kInt8 };
std::string_view WeightTypeName(WeightType type);   // "f32", "bf16" or "int8"
WeightType ParseWeightType(std::string_view name);  // the inverse; throws Error
constexpr int64_t InputsPerWord(WeightType type) {  // of 4 bytes
  return int64_t{1} << static_cast<int>(type);
}

// Micro-kernels read weights and activations in words of 4 bytes, 16 of them to a chunk: one cache
// line. With G = InputsPerWord, input i of a row is part i % (16 G) / 16 of word i % 16 in chunk
// i / (16 G), so that a chunk comes from whole vectors. Zeros fill the last chunk.
constexpr int64_t kChunkWords = 16;
struct alignas(64) Chunk {
  uint32_t words[kChunkWords];
};
constexpr int64_t InputsPerChunk(WeightType type) { return kChunkWords * InputsPerWord(type); }
constexpr int64_t Chunks(WeightType type, int64_t in) {
  return (in + InputsPerChunk(type) - 1) / InputsPerChunk(type);
}

struct PanelRange;

// The weight of a linear layer, copied once into the order in which the micro-kernel reads it.
// Immutable, and shared by any number of threads; copies share the memory.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // weight [out,in] row-major float32; bias [out] or null. Both are copied. A weight that is not
  // finite makes its output NaN.
  static PackedMatrix Pack(const float* weight, const float* bias, int64_t out, int64_t in,
                           WeightType type = WeightType::kFloat32);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  WeightType type() const { return type_; }
  int64_t bytes() const;

  // Outputs are grouped in panels of kPanel. Panel p is [chunks,kChunkWords,kPanel]: a word of
  // inputs for each output, side by side. int8 weights are stored plus 128, unsigned. One row
  // streams weights 4-7% faster than with panels of 32 (Zen 4, from L3); 128 gains no more than 2%.
  static constexpr int64_t kPanel = 64;
  static constexpr int64_t kChunkLines = kPanel;  // cache lines of a panel for a chunk of inputs
  int64_t panels() const { return (out_ + kPanel - 1) / kPanel; }
  int64_t chunks() const { return Chunks(type_, in_); }
  const uint32_t* panel(int64_t p) const { return panels_[static_cast<size_t>(p)]; }
  // [panels() * kPanel], zeros beyond `out`; null where there is none.
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  const float* scale() const { return scale_.empty() ? nullptr : scale_.data(); }  // int8

 private:
  friend void LayOut(std::span<const PanelRange> order);
  int64_t panel_lines() const { return chunks() * kChunkLines; }

  int64_t in_ = 0, out_ = 0;
  WeightType type_ = WeightType::kFloat32;
  std::shared_ptr<Chunk[]> memory_;
  std::vector<const uint32_t*> panels_;
  std::vector<float> bias_, scale_;
};

// Panels [begin,end) of a matrix.
struct PanelRange {
  PackedMatrix* matrix;
  int64_t begin, end;
};

// Moves the panels of several matrices into one block of memory, in this order: to be that in which
// a thread reads them, one thread's share after the other's. One row then takes 5-18% less (two
// threads, weights from L3, Zen 4): prefetchers that run past the end of a panel find what comes
// next. Each panel of each matrix must be given once. No product may be under way.
void LayOut(std::span<const PanelRange> order);

}  // namespace linattn
