#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cache_ref.h"
#include "kernels/mixer.h"

// lsh: softmax attention to the keys that a hash finds near the query, for queries that are the
// keys. In each of R = options.lsh.rounds rounds
//
//     b_t = argmax_i [k_t R_r, -k_t R_r]_i            the bucket of token t; R_r random, by the
//     seed t sees s <= t if b_s = b_t and s stands in t's chunk of that bucket or in the one before
//
// where a bucket's tokens, in order of time, are cut into chunks of options.lsh.chunk from its
// first one on. Over what t sees in any round, itself left out unless there is nothing else,
//
//     o_t = sum_s n_ts exp(scale q_t . k_s/|k_s| - l_t) v_s      n_ts: the rounds in which t sees s
//
// with l_t the log of the sum of n exp(score): rounds are weighed by their own sums, o = sum_r
// exp(l_r
// - l) o_r. Not causal: the same without s <= t. All query heads of a key head share its buckets.
//
// Where this leaves the paper: there, chunks are cut from the whole sequence sorted by bucket, so
// that which earlier tokens t meets depends on how many later ones hash to lower buckets. Here it
// depends on the past alone: strictly causal, any length, and a step needs of each round one chain.
//
// The caller owes: q = k (Mixer::shared_qk; otherwise the hash says nothing about q), gradients d_q
// + d_k for it; what softmax's caller owes. Keys of another sequence are refused. The hash has no
// gradient. Kitaev, Kaiser and Levskaya 2020, "Reformer: the efficient transformer".
namespace linattn {

extern const Mixer k_lsh;

// ---- The definition, in float64 with cache_ref.h. Nobody may optimise it. ----

namespace lsh_ref {

void Forward(const MixerInputs& in, const MixerOutputs& out);
void Backward(const MixerInputs& in, const MixerOutputs& out, const MixerGradients& gradients);

}  // namespace lsh_ref
}  // namespace linattn
