#include "kernels/lsh_lists.h"

#include <algorithm>

#include "base/error.h"

namespace linattn {

void LshChains::CheckHolds(int64_t length) const {
  for (int64_t r = 0; r < rounds_; ++r) {
    int64_t tokens = 0;
    bool sound = true;
    for (int64_t b = 0; b < buckets_ && sound; ++b) {
      int64_t links = 0;
      sound = Last(r, b) < length;
      for (int64_t t = sound ? Last(r, b) : -1; t >= 0; t = Before(r, t)) ++links;
      sound = sound && links == Count(r, b);
      tokens += links;
    }
    Check(sound && tokens == length, "lsh",
          "the state block must hold a sequence of {} tokens, but does not", length);
  }
}

LshLists::LshLists(const MixerOptions& options, int64_t tokens, int64_t all)
    : options_(options),
      bucket_(options.lsh.rounds * tokens),
      lonely_(tokens),
      old_(options.lsh.buckets),
      fresh_(options.lsh.buckets),
      key_start_(options.lsh.buckets),
      query_start_(options.lsh.buckets),
      keys_(all),
      queries_(tokens),
      hidden_(tokens),
      first_(all),
      end_(all) {
  const int64_t chunk = options.lsh.chunk;
  for (int64_t i = 0; i < all; ++i) {
    first_[i] = FirstSeen(i, chunk);
    end_[i] = options.causal ? i + 1 : i - i % chunk + std::min(chunk, all);
  }
}

void LshLists::Hash(const float* k, int64_t T, int64_t K, const float* rotations,
                    const LshChains* chains, int64_t length) {
  T_ = T, length_ = length, chains_ = chains;
  const int64_t half = options_.lsh.buckets / 2;
  for (int64_t r = 0; r < options_.lsh.rounds; ++r)
    HashRows(k, T, K, rotations + r * K * half, options_.lsh.buckets, bucket_.data() + r * T);
  FindLonely();
}

void LshLists::CountOld(int64_t round) {
  for (int64_t b = 0; b < options_.lsh.buckets; ++b)
    old_[b] = chains_ ? chains_->Count(round, b) : 0;
}

// Tokens that no round shows another one: first of their buckets and, not causal, of a chunk that
// has no second.
void LshLists::FindLonely() {
  std::fill_n(lonely_.begin(), T_, 1);
  for (int64_t r = 0; r < options_.lsh.rounds; ++r) {
    const int32_t* bucket = bucket_.data() + r * T_;
    CountOld(r);
    std::fill(fresh_.begin(), fresh_.end(), 0);
    for (int64_t t = 0; t < T_; ++t)
      if (old_[bucket[t]] + fresh_[bucket[t]]++ > 0) lonely_[t] = 0;
    for (int64_t t = 0; t < T_ && !options_.causal && options_.lsh.chunk > 1; ++t)
      if (fresh_[bucket[t]] > 1) lonely_[t] = 0;
  }
}

void LshLists::Sort(int64_t round) {
  const int32_t* bucket = bucket_.data() + round * T_;
  CountOld(round);
  std::fill(fresh_.begin(), fresh_.end(), 0);
  for (int64_t t = 0; t < T_; ++t) ++fresh_[bucket[t]];
  for (int64_t b = 0, key = 0, query = 0; b < options_.lsh.buckets; ++b) {
    key_start_[b] = key, query_start_[b] = query;
    key += old_[b] + fresh_[b], query += fresh_[b];
    for (int64_t i = old_[b] - 1, t = chains_ ? chains_->Last(round, b) : -1; i >= 0; --i) {
      keys_[key_start_[b] + i] = t;
      t = chains_->Before(round, t);
    }
  }
  std::fill(fresh_.begin(), fresh_.end(), 0);
  for (int64_t t = 0; t < T_; ++t) {
    const int64_t b = bucket[t], i = fresh_[b]++;
    keys_[key_start_[b] + old_[b] + i] = length_ + t;
    queries_[query_start_[b] + i] = t;
    hidden_[query_start_[b] + i] = lonely_[t] ? -1 : old_[b] + i;
  }
}

void LshLists::AppendTo(LshChains& chains) const {
  for (int64_t r = 0; r < options_.lsh.rounds; ++r)
    for (int64_t t = 0; t < T_; ++t) chains.Append(r, bucket_[r * T_ + t], length_ + t);
}

LshLists::Bucket LshLists::At(int64_t b) const {
  return {.keys = keys_.data() + key_start_[b],
          .queries = queries_.data() + query_start_[b],
          .old = old_[b],
          .fresh = fresh_[b],
          .visible = {.first = first_.data() + old_[b],
                      .end = end_.data() + old_[b],
                      .hidden = hidden_.data() + query_start_[b]}};
}

}  // namespace linattn
