#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/session.h"
#include "runtime/symbol_sampler.h"

namespace linattn {

struct ContinuationOptions {
  uint64_t seed = 0;
  SamplerOptions sampler;
  double repetition_penalty = 1;   // PenaliseRepetition (kernels/sampler.h)
  int64_t repetition_window = 64;  // symbols that it looks back on
  int64_t kept = 64;               // symbols that Last can tell, if not more for the penalty
  int64_t label = 0;               // class of a conditional model
};

// One sequence that grows without an end: read what is given, draw what comes next. Needs a model
// with a categorical head. In memory of a fixed size where the model's is; elsewhere room for
// max_len tokens. What is drawn is a function of the seed, of the symbols before and of their
// number, and not of where the sequence was saved and loaded in between.
class Continuation {
 public:
  // The model must outlive it. Throws Error for a head that is not categorical, a window that is
  // not from 0 to 2^20 symbols, and what Session refuses.
  Continuation(const PackedModel& model, const ContinuationOptions& options);

  int64_t length() const { return length_; }        // symbols read or drawn
  int64_t evaluated() const { return evaluated_; }  // tokens that have passed the model
  int64_t state_bytes() const;
  // The last n symbols, the oldest first, or as many as there are and are kept.
  std::span<const int32_t> Last(int64_t n) const;
  // How many of the last symbols are drawn ones that belong together: since symbols were read, or
  // since EndRun. Saving does not end a run.
  int64_t run() const { return run_; }
  void EndRun() { run_ = 0; }
  // Of the start token and all symbols: tells whether a sequence is the one that is wanted.
  uint64_t digest() const { return digest_; }
  static uint64_t Extended(uint64_t digest, std::span<const int32_t> symbols);
  uint64_t empty_digest() const;  // of a sequence without symbols

  void Reset();
  // Throws Error, and changes nothing, if a symbol is out of range or the sequence would be too
  // long.
  void Read(std::span<const int32_t> symbols);
  // Draws the next symbol. It is read by the next call of anything, so that the last one of all
  // costs nothing. Throws Error naming its place if the model's outputs are not finite.
  int32_t Next();

  // A state file of all symbols until now (session_file.h), of one size whatever their number.
  void Save(const std::string& path);
  // Throws Error, and changes nothing, if the file is not a whole one of this model's
  // continuations.
  void Load(const std::string& path);

 private:
  void Settle();  // reads the start token and what was drawn
  void Note(int32_t symbol);

  const PackedModel& model_;
  ContinuationOptions options_;
  Session session_;
  SymbolSampler sample_;
  Random random_;
  int64_t length_ = 0, evaluated_ = 0, run_ = 0;
  int32_t drawn_ = -1;  // but not read; -1: none
  uint64_t digest_ = 0;
  int64_t kept_;                 // symbols
  std::vector<int32_t> recent_;  // the last of them, the oldest first: up to twice as many
  std::vector<float> outputs_;   // penalised
};

}  // namespace linattn
