#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/array.h"
#include "kernels/feature_map.h"

// The contract that all mixers share. Letters: B rows of a batch, T queries, S keys (= T unless cross), H
// query/key heads, HV value heads, K key channels, F features phi(k), V value channels, N sequences (= B, or
// the number of packed segments).
namespace linattn {

enum class Family { kState, kCache };                 // fixed-size memory | keeps its tokens
enum class Decay { kNone, kScalar, kPerChannel };     // of the state, per token
enum class Write { kAdd, kDelta };

enum class SparsePattern : uint8_t { kStrided, kFixed };

struct SparseOptions {
  SparsePattern pattern = SparsePattern::kStrided;
  int64_t stride = 64;   // of the pattern, in tokens; about the root of the length
  int64_t summary = 8;   // fixed: the last tokens of each block that all later ones see
};

struct LshOptions {
  int64_t rounds = 4, buckets = 32, chunk = 32;  // hash rounds; buckets a round (even); tokens a chunk
  uint64_t seed = 0;                             // of the random rotations
};

struct MixerOptions {
  bool causal = true;                 // state mixers with a decay or the delta rule have no other order
  bool cross = false;                 // keys come from another sequence: S is free, not causal
  double scale = 0;                   // on q (after phi); 0 means the default: normalised state mixers 1, others K^-1/2
  double eps = 1e-6;                  // added to the normaliser of normalised state mixers
  bool normalise = true;              // false: a normalised state mixer leaves the division out, and z as it is
  const FeatureMap* feature_map = nullptr;  // of q and k; null: the mixer's default
  const FeatureMap* key_map = nullptr;      // of k; null: feature_map's OfKeys(). Gives as many features

  // Cache mixers.
  int64_t window = 0;                 // causal: a query sees only its last `window` keys; 0 = all
  int64_t sinks = 0;                  // with a window: and the first `sinks` keys
  DType cache = DType::kF32;          // what keys and values are kept in while decoding: kF32 or kBF16
  SparseOptions sparse = {};
  LshOptions lsh = {};
};

// Which tokens belong together; at most one of lengths, mask, boundaries for each side. A masked token is the
// identity on the state; its output and gradients are zero whatever it holds. Self-attention takes the query
// side's for both; cross-attention reads the k_ fields too.
struct Segments {
  Array lengths, k_lengths;        // [B] I64: row b is valid for t < lengths[b]
  Array mask, k_mask;              // [B,T], [B,S] U8 or BOOL: nonzero = valid; left padding and holes allowed
  Array boundaries, k_boundaries;  // [N+1] I64: packed segments 0, len1, len1+len2, ...; B = 1
};

// Every view may be strided, except that the last axis must be contiguous; else an Error says so. q, k, v, g,
// beta may be F32, BF16 or F16 in the fast functions; all arrays are F64 in the reference functions.
struct MixerInputs {
  Array q;     // [B,T,H,K]    softmax: H query heads may be a multiple of the key heads (k, v have HKV)
  Array k;     // [B,S,H,K]
  Array v;     // [B,S,HV,V]   state mixers: value head j reads query/key head j / (HV/H)
  Array g;     // [B,T,HV] or [B,T,HV,F] log decay, natural, <= 0 (-inf: forget all); mixers with a decay
  Array beta;  // [B,T,HV]     write strength; delta mixers
  Array S0;    // [N,HV,F,V]   absent: zero; state mixers, F32
  Array z0;    // [N,HV,F]     absent: zero; normalised state mixers, F32
  Segments segments;
  MixerOptions options;
};

struct MixerOutputs {
  Array o;     // [B,T,HV,V] (cache mixers: [B,T,H,V]), any float dtype; masked tokens become 0
  Array norm;  // [B,T,heads of o] F32: the denominator of o (linear) or the log-sum-exp (softmax); what backward
               // reads. May be absent in forward; mixers without one leave it alone
  Array ST;    // [N,HV,F,V], [N,HV,F] final state; may be absent, may alias S0, z0
  Array zT;
};

// Gradients: absent cotangents are zero, absent results are not computed. Results overwrite.
struct MixerGradients {
  Array d_o, d_ST, d_zT;                              // in
  Array d_q, d_k, d_v, d_g, d_beta, d_S0, d_z0;       // out, shaped as the inputs; any float dtype
};

// Sizes that inputs imply, after CheckInputs.
struct MixerDims {
  int64_t B = 0, T = 0, S = 0, H = 0, HV = 0, K = 0, F = 0, V = 0, N = 0;
};

// A thread's share of a step: key heads [begin, end), and all value or query heads that go with them.
struct HeadShare {
  int64_t begin = 0, end = 0;
  bool whole() const { return end == 0; }
};

// One token of each of n sequences against the state block that it owns. `length` counts tokens before this one.
struct StepInputs {
  Array q, k, v;               // [n,H,K], [n,HK,K], [n,HV,V]  F32
  Array g, beta;               // [n,HV] or [n,HV,F]; [n,HV]  F32
  Array o;                     // [n,HO,V] out, F32
  float* const* state;         // [n] blocks of StateFloats() floats, all zero for a new sequence
  const int64_t* length;       // [n]
  int64_t capacity = 0;        // tokens that a block has room for (cache mixers)
  MixerOptions options;
  // Not whole: inputs have passed CheckStep, and the call starts no threads. Mixer::shares_steps only.
  HeadShare share = {};
};

// Error bounds of the fast functions in float32, as max|x - ref| / max|ref|, with their reason.
struct Tolerance {
  double forward, backward;
  std::string_view reason;
};

// What the registry keeps for each mixer. A descriptor may leave null what its references can stand in for
// (kernels/reference_fallback.h); in the registry every pointer is set.
struct Mixer {
  std::string_view name;      // the paper's, the same in file, flag, model file and docs
  std::string_view summary;   // one line for --help
  Family family;
  Decay decay = Decay::kNone;
  Write write = Write::kAdd;
  bool normalised = false;
  std::string_view feature_map = {};  // the default, by name; of state mixers
  // Not null: g is not learned, and this is the log decay of value head `head` of `heads` (decay_schedule.h).
  double (*fixed_decay)(int64_t head, int64_t heads) = nullptr;
  bool shared_qk = false;     // the layer gives q for k, and has no projection for k
  bool causal_only = false;   // options.causal = false is refused
  bool self_only = false;     // keys of another sequence (options.cross) are refused
  Tolerance tolerance;

  // Definition in plain loops on F64 arrays; nobody may optimise them.
  void (*forward_ref)(const MixerInputs&, const MixerOutputs&) = nullptr;
  void (*backward_ref)(const MixerInputs&, const MixerOutputs&, const MixerGradients&) = nullptr;

  // Fast paths. `scratch` has scratch_bytes(dims, threads) bytes, 64-byte aligned. Backward reads o and norm
  // as forward left them.
  int64_t (*scratch_bytes)(const MixerDims&, int threads) = nullptr;
  void (*forward)(const MixerInputs&, const MixerOutputs&, void* scratch) = nullptr;
  void (*backward)(const MixerInputs&, const MixerOutputs&, const MixerGradients&, void* scratch) = nullptr;

  // Decoding. A sequence's state in one layer is one block of floats: [HV,F,V], then [HV,F] if normalised, or
  // keys [HK,slots,K] then values [HK,slots,V] and what else a cache mixer needs (cache_mixer.h), so that it can be
  // copied, saved and forked. slots: capacity, or no more than sinks + window.
  int64_t (*state_floats)(const MixerDims&, const MixerOptions&, int64_t capacity) = nullptr;
  void (*step)(const StepInputs&) = nullptr;  // never allocates; state mixers: F <= 8192
  bool shares_steps = false;  // several threads may step one sequence at a time, each its own heads
  // A run of tokens of ONE sequence (B = 1) after the `length` that `state` holds: o as forward would give.
  void (*prefill)(const MixerInputs&, const Array& o, float* state, int64_t length, int64_t capacity) = nullptr;

  double (*flops)(const MixerDims&, bool causal) = nullptr;  // of forward; useful operations only
  double (*bytes)(const MixerDims&, bool causal) = nullptr;  // compulsory traffic of forward, float32
};

std::span<const Mixer* const> AllMixers();
const Mixer& MixerByName(std::string_view name);  // throws Error that lists the known names

// Validates shapes, dtypes, strides and segments against `mixer`; returns the sizes. Throws Error, e.g.
// "[linear] v must be [B,S,HV,V] with B=2, S=16, but has shape [2,15,4,32]".
MixerDims CheckInputs(const Mixer& mixer, const MixerInputs& in);
// The same for what the fast functions write.
void CheckOutputs(const Mixer& mixer, const MixerDims& dims, const MixerOutputs& out);
void CheckGradients(const Mixer& mixer, const MixerInputs& in, const MixerGradients& grad);
void CheckStep(const Mixer& mixer, const StepInputs& in);

// The tokens of one sequence: t = begin + i, or index[i], for i < length, of batch row `row`.
struct TokenList {
  int64_t row = 0, begin = 0, length = 0;
  const int64_t* index = nullptr;
  int64_t operator[](int64_t i) const { return index ? index[i] : begin + i; }
};

// Segments, resolved: sequence n's queries and keys (the same list unless cross), and every masked token.
struct Sequences {
  std::vector<TokenList> queries, keys;        // N each
  std::vector<TokenList> masked_q, masked_k;   // tokens whose outputs (gradients) are to be zeroed
  std::vector<std::vector<int64_t>> storage;   // owns the index lists
};
Sequences ResolveSegments(const MixerInputs& in, const MixerDims& dims);
// Zeroes these tokens' rows of an array [B,T,...] of any dtype; nothing if it is absent.
void ZeroTokens(const Array& array, const std::vector<TokenList>& tokens);

}  // namespace linattn
