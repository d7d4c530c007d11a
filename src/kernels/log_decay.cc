#include "kernels/log_decay.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace linattn {
namespace {

bool Positive(double x) { return x > 0; }
bool Positive(float x) { return x > 0; }
// By their bits, as integers: +0 is 0, negative numbers are below it, NaN lies above infinity.
bool Positive(BF16 x) { return static_cast<uint16_t>(x.bits - 1) < 0x7F80; }
bool Positive(F16 x) { return static_cast<uint16_t>(x.bits - 1) < 0x7C00; }

double Value(double x) { return x; }
double Value(float x) { return x; }
double Value(BF16 x) { return ToFloat(x); }
double Value(F16 x) { return ToFloat(x); }

template <class R>
bool AnyPositive(const R* x, int64_t n) {
  int count = 0;  // without a branch: the loop is as fast as memory
  for (int64_t i = 0; i < n; ++i) count |= Positive(x[i]);
  return count != 0;
}

[[noreturn]] void Refuse(std::string_view mixer, const std::string& where, double value) {
  Fail(
      mixer,
      "g must be the natural logarithm of the decay, so at most 0, but g{} is {} (a decay in (0,1] "
      "is given as its log; a gate w as -exp(w))",
      where, value);
}

// The gates of one token: HV rows of `width`.
template <class R>
bool AnyPositiveAt(const Array& g, int64_t row, int64_t t) {
  if (g.rank == 3) return AnyPositive(g.At<R>(row, t), g.shape[2]);
  bool any = false;
  for (int64_t h = 0; h < g.shape[2]; ++h) any |= AnyPositive(g.At<R>(row, t, h), g.shape[3]);
  return any;
}

template <class R>
void RefuseAt(std::string_view mixer, const Array& g, int64_t row, int64_t t) {
  const int64_t width = g.rank == 3 ? 1 : g.shape[3];
  for (int64_t h = 0; h < g.shape[2]; ++h)
    for (int64_t f = 0; f < width; ++f)
      if (const R x = *g.At<R>(row, t, h, f); Positive(x))
        Refuse(mixer,
               fmt::format("[{},{},{}{}]", row, t, h, width > 1 ? fmt::format(",{}", f) : ""),
               Value(x));
}

template <class R>
void CheckTokens(std::string_view mixer, const Array& g, const TokenList& tokens) {
  const int64_t length = g.stride[1] == 0 ? std::min<int64_t>(tokens.length, 1) : tokens.length;
  const int64_t gates = g.shape[2] * (g.rank == 3 ? 1 : g.shape[3]);
  constexpr int64_t kParallelGates = 1 << 16;
  bool any = false;
#pragma omp parallel for reduction(|| : any) if (length * gates > kParallelGates)
  for (int64_t i = 0; i < length; ++i) any = any || AnyPositiveAt<R>(g, tokens.row, tokens[i]);
  for (int64_t i = 0; any && i < length; ++i) RefuseAt<R>(mixer, g, tokens.row, tokens[i]);
}

}  // namespace

void CheckLogDecay(std::string_view mixer, const Array& g, const Sequences& sequences) {
  if (!g.present()) return;
  for (const TokenList& tokens : sequences.queries) {
    if (g.dtype == DType::kF64) CheckTokens<double>(mixer, g, tokens);
    if (g.dtype == DType::kF32) CheckTokens<float>(mixer, g, tokens);
    if (g.dtype == DType::kBF16) CheckTokens<BF16>(mixer, g, tokens);
    if (g.dtype == DType::kF16) CheckTokens<F16>(mixer, g, tokens);
  }
}

void CheckStepLogDecay(std::string_view mixer, const Array& g) {
  if (!g.present()) return;
  const int64_t width = g.rank == 2 ? 1 : g.shape[2];
  for (int64_t i = 0; i < g.shape[0]; ++i)
    for (int64_t h = 0; h < g.shape[1]; ++h)
      for (int64_t f = 0; f < width; ++f)
        if (const float x = *g.At<float>(i, h, f); x > 0)
          Refuse(mixer, fmt::format("[{},{}{}]", i, h, width > 1 ? fmt::format(",{}", f) : ""), x);
}

}  // namespace linattn
