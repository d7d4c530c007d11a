#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/blocked_softmax.h"
#include "kernels/lsh_hash.h"
#include "kernels/mixer.h"

// Who meets whom in `lsh`: the tokens of one key head of one sequence, bucket by bucket.
namespace linattn {

// The first place of a bucket that the token at `place` sees: that of the chunk before its own.
inline int64_t FirstSeen(int64_t place, int64_t chunk) {
  return place < chunk ? 0 : (place / chunk - 1) * chunk;
}

// The chains that a state block keeps for one key head: of each round and bucket the number of its
// tokens and the last of them, of each token the one before it in its bucket. Counted from 1 (0:
// none) in floats, which are exact up to 2^24 tokens, so that a block may be treated as numbers.
class LshChains {
 public:
  static constexpr int64_t kMaxTokens = 1 << 24;
  static int64_t Floats(const LshOptions& lsh, int64_t capacity) {
    return lsh.rounds * (2 * lsh.buckets + capacity);
  }

  LshChains(const LshOptions& lsh, int64_t capacity, float* floats)
      : rounds_(lsh.rounds),
        buckets_(lsh.buckets),
        capacity_(capacity),
        counts_(floats),
        lasts_(counts_ + lsh.rounds * buckets_),
        before_(lasts_ + lsh.rounds * buckets_) {}

  void Clear() {
    std::fill(counts_, before_, 0.0f);  // Before is asked of appended tokens only
  }
  // Throws unless the chains are those of `length` tokens: a block may come from a file.
  void CheckHolds(int64_t length) const;

  int64_t Count(int64_t round, int64_t bucket) const {
    return Whole(counts_[round * buckets_ + bucket], capacity_);
  }
  // The bucket's last token, -1 if there is none; the one before token t of its bucket.
  int64_t Last(int64_t round, int64_t bucket) const {
    return Whole(lasts_[round * buckets_ + bucket], capacity_) - 1;
  }
  int64_t Before(int64_t round, int64_t t) const {
    return Whole(before_[round * capacity_ + t], t) - 1;
  }
  void Append(int64_t round, int64_t bucket, int64_t t) {
    float& last = lasts_[round * buckets_ + bucket];
    before_[round * capacity_ + t] = last;
    last = static_cast<float>(t + 1);
    counts_[round * buckets_ + bucket] += 1;
  }

 private:
  // x, or 0 if it is none of 0 ... most, so that a damaged block leads nowhere outside.
  static int64_t Whole(float x, int64_t most) {
    return x >= 0 && x <= static_cast<float>(most) ? static_cast<int64_t>(x) : 0;
  }

  int64_t rounds_, buckets_, capacity_;
  float *counts_, *lasts_, *before_;  // [rounds,buckets], [rounds,buckets], [rounds,capacity]
};

// The lists of new tokens of one key head, behind those of its chains, if there are any.
class LshLists {
 public:
  // Room for `tokens` of them, `all` with those before.
  LshLists(const MixerOptions& options, int64_t tokens, int64_t all);

  // Hashes the raw keys k [T,K], tokens `length` to length + T of the sequence, in all rounds.
  // chains: of the tokens before, or null if length is 0.
  void Hash(const float* k, int64_t T, int64_t K, const float* rotations, const LshChains* chains,
            int64_t length);
  // Makes the lists of one round.
  void Sort(int64_t round);
  // Puts the new tokens into their chains.
  void AppendTo(LshChains& chains) const;

  // Bucket b of the sorted round: its tokens, `old` before the new ones and `fresh` new ones; the
  // new ones again, counted from the first new token; what each of these sees of the bucket. That
  // is not itself, unless there is nothing else for it in any round.
  struct Bucket {
    const int64_t* keys;
    const int64_t* queries;
    int64_t old, fresh;
    Visibility visible;
  };
  Bucket At(int64_t b) const;

 private:
  void CountOld(int64_t round);
  void FindLonely();

  MixerOptions options_;
  int64_t T_ = 0, length_ = 0;
  const LshChains* chains_ = nullptr;
  std::vector<int32_t> bucket_;                                 // [rounds,T]
  std::vector<uint8_t> lonely_;                                 // [T]
  std::vector<int64_t> old_, fresh_, key_start_, query_start_;  // [buckets]
  std::vector<int64_t> keys_, queries_, hidden_;
  std::vector<int64_t> first_, end_;  // [all], by a token's place in its bucket
};

}  // namespace linattn
