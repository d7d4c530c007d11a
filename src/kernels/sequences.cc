#include <cstring>
#include <string_view>

#include "base/error.h"
#include "kernels/mixer.h"

namespace linattn {
namespace {

constexpr std::string_view kWhere = "segments";

// One side's fields under the names that messages use.
struct Side {
  const Array &lengths, &mask, &boundaries;
  std::string_view prefix, letter;  // "" and "T", or "k_" and "S"
  int64_t B, T;
};

struct Lists {
  std::vector<TokenList> tokens, masked;
};

void CheckSide(const Side& s) {
  const int given = s.lengths.present() + s.mask.present() + s.boundaries.present();
  Check(given <= 1, kWhere,
        "at most one of {0}lengths, {0}mask and {0}boundaries must be given, but{1}{2}{3} are "
        "(packed boundaries already say which tokens belong together)",
        s.prefix, s.lengths.present() ? " lengths" : "", s.mask.present() ? " mask" : "",
        s.boundaries.present() ? " boundaries" : "");
}

Lists FromLengths(const Side& s) {
  const Array& lengths = s.lengths;
  Check(lengths.rank == 1 && lengths.shape[0] == s.B && lengths.dtype == DType::kI64, kWhere,
        "{}lengths must be [B] = [{}] of I64, but are {} of {}", s.prefix, s.B,
        lengths.ShapeString(), NameOf(lengths.dtype));
  Lists lists;
  for (int64_t b = 0; b < s.B; ++b) {
    const int64_t length = *lengths.At<int64_t>(b);
    Check(length >= 0 && length <= s.T, kWhere, "{0}lengths[{1}] must be in 0..{2}={3}, but is {4}",
          s.prefix, b, s.letter, s.T, length);
    lists.tokens.push_back({.row = b, .begin = 0, .length = length});
    if (length < s.T) lists.masked.push_back({.row = b, .begin = length, .length = s.T - length});
  }
  return lists;
}

// The tokens of row b with or without a mask bit; an unbroken run needs no index.
TokenList Select(const Side& s, int64_t b, bool valid, std::vector<std::vector<int64_t>>* storage) {
  std::vector<int64_t> index;
  for (int64_t t = 0; t < s.T; ++t)
    if ((*s.mask.At<uint8_t>(b, t) != 0) == valid) index.push_back(t);
  TokenList list{.row = b, .begin = 0, .length = static_cast<int64_t>(index.size())};
  if (index.empty()) return list;
  list.begin = index.front();
  if (index.back() - index.front() + 1 == list.length) return list;
  list.index = storage->emplace_back(std::move(index)).data();
  return list;
}

Lists FromMask(const Side& s, std::vector<std::vector<int64_t>>* storage) {
  const Array& mask = s.mask;
  const bool bytes = mask.dtype == DType::kU8 || mask.dtype == DType::kBool;
  Check(mask.rank == 2 && mask.shape[0] == s.B && mask.shape[1] == s.T && bytes, kWhere,
        "{}mask must be [B,{}] = [{},{}] of U8 or BOOL, but is {} of {}", s.prefix, s.letter, s.B,
        s.T, mask.ShapeString(), NameOf(mask.dtype));
  Lists lists;
  for (int64_t b = 0; b < s.B; ++b) {
    lists.tokens.push_back(Select(s, b, true, storage));
    const TokenList masked = Select(s, b, false, storage);
    if (masked.length > 0) lists.masked.push_back(masked);
  }
  return lists;
}

Lists FromBoundaries(const Side& s, int64_t N) {
  const Array& bounds = s.boundaries;
  Check(bounds.rank == 1 && bounds.dtype == DType::kI64 && bounds.shape[0] == N + 1, kWhere,
        "{}boundaries must be [N+1] = [{}] of I64, but are {} of {}", s.prefix, N + 1,
        bounds.ShapeString(), NameOf(bounds.dtype));
  Check(s.B == 1, kWhere, "packed sequences must have B=1, but have B={}", s.B);
  Check(*bounds.At<int64_t>(0) == 0 && *bounds.At<int64_t>(N) == s.T, kWhere,
        "{}boundaries must run from 0 to {}={}, but run from {} to {}", s.prefix, s.letter, s.T,
        *bounds.At<int64_t>(0), *bounds.At<int64_t>(N));
  Lists lists;
  for (int64_t n = 0; n < N; ++n) {
    const int64_t begin = *bounds.At<int64_t>(n), end = *bounds.At<int64_t>(n + 1);
    Check(begin <= end, kWhere, "{}boundaries must not decrease, but entries {} and {} are {}, {}",
          s.prefix, n, n + 1, begin, end);
    lists.tokens.push_back({.row = 0, .begin = begin, .length = end - begin});
  }
  return lists;
}

Lists Resolve(const Side& s, int64_t N, std::vector<std::vector<int64_t>>* storage) {
  CheckSide(s);
  if (s.boundaries.present()) return FromBoundaries(s, N);
  if (s.lengths.present()) return FromLengths(s);
  if (s.mask.present()) return FromMask(s, storage);
  Lists lists;
  for (int64_t b = 0; b < s.B; ++b) lists.tokens.push_back({.row = b, .begin = 0, .length = s.T});
  return lists;
}

}  // namespace

Sequences ResolveSegments(const MixerInputs& in, const MixerDims& d) {
  const Segments& given = in.segments;
  const bool k_side =
      given.k_lengths.present() || given.k_mask.present() || given.k_boundaries.present();
  Check(in.options.cross || !k_side, kWhere,
        "k_lengths, k_mask and k_boundaries must be absent without options.cross, but one is given "
        "(self-attention takes the query side's)");
  Check(!in.options.cross || given.boundaries.present() == given.k_boundaries.present(), kWhere,
        "boundaries and k_boundaries must be given together, but only one is");
  Sequences sequences;
  Lists queries = Resolve({given.lengths, given.mask, given.boundaries, "", "T", d.B, d.T}, d.N,
                          &sequences.storage);
  Lists keys =
      in.options.cross
          ? Resolve({given.k_lengths, given.k_mask, given.k_boundaries, "k_", "S", d.B, d.S}, d.N,
                    &sequences.storage)
          : queries;
  sequences.queries = std::move(queries.tokens);
  sequences.masked_q = std::move(queries.masked);
  sequences.keys = std::move(keys.tokens);
  sequences.masked_k = std::move(keys.masked);
  return sequences;
}

void ZeroTokens(const Array& array, const std::vector<TokenList>& tokens) {
  if (!array.present()) return;
  const int64_t width = array.rank == 4 ? array.shape[3] : 1;
  const int64_t bytes = SizeOf(array.dtype);
  for (const TokenList& list : tokens) {
    for (int64_t i = 0; i < list.length; ++i) {
      for (int64_t h = 0; h < array.shape[2]; ++h) {
        const int64_t at =
            list.row * array.stride[0] + list[i] * array.stride[1] + h * array.stride[2];
        std::memset(static_cast<char*>(array.data) + at * bytes, 0, width * bytes);
      }
    }
  }
}

}  // namespace linattn
