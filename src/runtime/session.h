#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/float_buffer.h"
#include "runtime/packed_model.h"
#include "runtime/spin_barrier.h"

namespace linattn {

// Independent sequences, one a slot, that grow token by token. A slot's memory is one block of
// floats, the mixers' states of all layers, so that a sequence can be copied, saved and resumed.
// What a slot computes does not depend on the others, on how tokens were grouped into calls of
// Step, or on the thread count. Prefill and Step of the same tokens agree to float32 rounding.
//
// Tokens are what the model reads: usually config().start_token(label) first, then symbols. The
// outputs after a token predict the symbol that follows. The model must outlive the session; one
// thread calls at a time.
class Session {
 public:
  // capacity: the most tokens a sequence may have; 0 means LongestSequence(config())
  // (model/layer.h), and no more than that. Throws Error if the model is not causal.
  Session(const PackedModel& model, int64_t slots, int64_t capacity = 0);

  const PackedModel& model() const { return model_; }
  int64_t slots() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t capacity() const { return capacity_; }
  int64_t length(int64_t slot) const { return lengths_[Checked(slot)]; }  // tokens read so far

  // Back to an empty sequence: zero state, length 0.
  void Reset(int64_t slot);
  // `to` becomes a copy of `from`: fork, or with a spare slot, snapshot and roll back.
  void Copy(int64_t from, int64_t to);

  // Reads a run of tokens in the mixers' chunkwise form; a run of none does nothing. Throws Error,
  // and changes nothing, if an id is out of range or the sequence would grow longer than
  // capacity().
  void Prefill(int64_t slot, std::span<const int32_t> tokens);
  // Reads tokens[i] in slots[i], for every i; slots are distinct. Same errors. Does not allocate.
  void Step(std::span<const int64_t> slots, std::span<const int32_t> tokens);
  // The same for models that read frames: frames [slots, config().row_width()].
  void StepFrames(std::span<const int64_t> slots, std::span<const float> frames);

  // [outputs] after the slot's last token (zeros if it has none); valid until the slot changes.
  std::span<const float> outputs(int64_t slot) const;

  // The slot's memory, [StateFloats] (model/layer.h) of layer 0, 1, ... .
  std::span<const float> state(int64_t slot) const;
  int64_t state_floats() const { return state_floats_; }

  // Overwrites a slot by what state(), outputs() and length() gave earlier, of the same model and
  // capacity.
  void Restore(int64_t slot, std::span<const float> state, std::span<const float> outputs,
               int64_t length);

 private:
  int64_t Checked(int64_t slot) const;
  void CheckGrowth(int64_t slot, int64_t tokens) const;
  void PrefillRun(int64_t slot, std::span<const int32_t> tokens);
  // What a step reads: one or the other.
  struct StepTokens {
    std::span<const int32_t> tokens{};
    const float* frames = nullptr;
  };
  void StepSlots(std::span<const int64_t> slots, const StepTokens& read);
  LayerRows RowsOfStep(int64_t begin, int64_t first, int64_t rows, int thread);
  StepInputs InputsOfStep(int64_t layer, const LayerRows& rows, int64_t first) const;
  void Embed(const StepTokens& read, int64_t first, const LayerRows& rows) const;
  void PrefetchState(int64_t layer, const LayerShare& share) const;
  void StepGroup(const StepTokens& read, int64_t first, int64_t rows);
  void StepShare(const StepTokens& read, int thread, int team);
  float* State(int64_t slot) { return states_.data() + slot * slot_stride_; }

  const PackedModel& model_;
  int64_t capacity_ = 0, state_floats_ = 0, slot_stride_ = 0;
  struct LayerState {
    int64_t offset = 0;        // in a slot's block
    int64_t mixer_floats = 0;  // the convolution's history comes behind them
    int64_t head_floats = 0;   // of state mixers: the matrices of a key head, which come first
  };
  std::vector<LayerState> layers_;
  std::vector<int64_t> lengths_;  // [slots]
  FloatBuffer states_, outputs_;  // [slots, slot_stride_], [slots, outputs]
  Workspace workspace_;
  SpinBarrier barrier_;
  int64_t steps_ = 0;
  std::vector<int64_t> last_step_;  // [slots] the step that a slot was last part of
  // Of the live rows of a step.
  int64_t step_rows_ = 0;
  std::vector<int64_t> row_position_;            // [slots]
  std::vector<float*> row_state_, row_history_;  // [layers, slots]
  FloatBuffer row_outputs_;                      // [slots, outputs]
};

}  // namespace linattn
