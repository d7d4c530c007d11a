#include "runtime/session.h"

#include <omp.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace linattn {
namespace {

constexpr int64_t kPrefillRows =
    256;  // tokens that pass the layers together: activations stay in the L2 cache
constexpr int64_t kGroupRows = 32;  // sequences that a thread takes through a layer together

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

Session::Session(const PackedModel& model, int64_t slots, int64_t capacity)
    : model_(model), capacity_(capacity == 0 ? LongestSequence(model.config()) : capacity) {
  const ModelConfig& c = model.config();
  Check(c.causal, "runtime", "token by token generation needs a causal model, but this one is not");
  Check(slots >= 1, "runtime", "a session must have at least one slot, but {} were asked for",
        slots);
  const int64_t longest = LongestSequence(c);
  Check(capacity_ >= 1 && capacity_ <= longest, "runtime",
        "a session's capacity must be from 1 to {} = {}, but is {}",
        longest == c.max_len ? "the model's max_len" : "2^60", longest, capacity_);
  for (int64_t layer = 0; layer < c.layers(); ++layer) {
    layers_.push_back({state_floats_, MixerStateFloats(c, layer, capacity_)});
    state_floats_ += StateFloats(c, layer, capacity_);
  }
  slot_stride_ = RoundUp(state_floats_, 16);
  lengths_.assign(slots, 0);
  last_step_.assign(slots, 0);
  states_ = FloatBuffer(slots * slot_stride_);
  outputs_ = FloatBuffer(slots * c.outputs());
  workspace_ = Workspace(c, std::max(slots, std::min(kPrefillRows, capacity_)));
  row_position_.resize(workspace_.rows);
  row_state_.resize(slots * c.layers());
  row_history_.resize(slots * c.layers());
  row_outputs_ = FloatBuffer(slots * c.outputs());
}

int64_t Session::Checked(int64_t slot) const {
  Check(slot >= 0 && slot < slots(), "runtime", "slot must be from 0 to {}, but is {}", slots() - 1,
        slot);
  return slot;
}

void Session::CheckGrowth(int64_t slot, int64_t tokens) const {
  const int64_t wanted = lengths_[Checked(slot)] + tokens;
  Check(wanted <= capacity_, "runtime",
        "a sequence must have at most {} tokens (of the model's maximum of {}), but would have {}",
        capacity_, model_.config().max_len, wanted);
}

void Session::Reset(int64_t slot) {
  std::fill_n(State(Checked(slot)), slot_stride_, 0.0f);
  const int64_t width = model_.config().outputs();
  std::fill_n(outputs_.data() + slot * width, width, 0.0f);
  lengths_[slot] = 0;
}

void Session::Copy(int64_t from, int64_t to) {
  if (Checked(from) == Checked(to)) return;
  Restore(to, state(from), outputs(from), lengths_[from]);
}

void Session::Restore(int64_t slot, std::span<const float> state, std::span<const float> outputs,
                      int64_t length) {
  Checked(slot);
  const int64_t width = model_.config().outputs();
  Check(static_cast<int64_t>(state.size()) == state_floats_ &&
            static_cast<int64_t>(outputs.size()) == width && length >= 0 && length <= capacity_,
        "runtime",
        "a restored sequence must have {} state floats, {} outputs and at most {} tokens, but has "
        "{}, {} and {}",
        state_floats_, width, capacity_, state.size(), outputs.size(), length);
  std::copy(state.begin(), state.end(), State(slot));
  std::copy(outputs.begin(), outputs.end(), outputs_.data() + slot * width);
  lengths_[slot] = length;
}

std::span<const float> Session::outputs(int64_t slot) const {
  const size_t width = static_cast<size_t>(model_.config().outputs());
  return {outputs_.data() + static_cast<size_t>(Checked(slot)) * width, width};
}

std::span<const float> Session::state(int64_t slot) const {
  return {states_.data() + Checked(slot) * slot_stride_, static_cast<size_t>(state_floats_)};
}

void Session::Prefill(int64_t slot, std::span<const int32_t> tokens) {
  CheckGrowth(slot, static_cast<int64_t>(tokens.size()));
  model_.CheckTokens(tokens, lengths_[slot]);
  while (!tokens.empty()) {
    const size_t run = std::min(tokens.size(), static_cast<size_t>(workspace_.rows));
    PrefillRun(slot, tokens.first(run));
    tokens = tokens.subspan(run);
  }
}

void Session::PrefillRun(int64_t slot, std::span<const int32_t> tokens) {
  const int64_t T = static_cast<int64_t>(tokens.size());
  std::iota(row_position_.begin(), row_position_.begin() + T, lengths_[slot]);
  const PackedModel::TokenRows rows{0, 1, T, row_position_.data()};
  model_.Embed(tokens, rows, workspace_);
  for (int64_t layer = 0; layer < model_.config().layers(); ++layer) {
    float* state = State(slot) + layers_[layer].offset;
    float* history = state + layers_[layer].mixer_floats;
    const PackedLayer::Views views = model_.Before(layer, rows, &history, workspace_);
    const MixerInputs in = InputsOf(views, model_.mixer_options(layer));
    model_.mixer(layer).prefill(in, views.o, state, lengths_[slot], capacity_);
    model_.After(layer, rows, workspace_);
  }
  lengths_[slot] += T;
  model_.Head(workspace_, T - 1, 1, outputs_.data() + slot * model_.config().outputs());
}

void Session::Step(std::span<const int64_t> slots, std::span<const int32_t> tokens) {
  Check(slots.size() == tokens.size(), "runtime",
        "a step must have one token for each slot, but has {} tokens for {}", tokens.size(),
        slots.size());
  for (size_t i = 0; i < slots.size(); ++i)
    model_.CheckTokens(tokens.subspan(i, 1), lengths_[Checked(slots[i])]);
  StepSlots(slots, {.tokens = tokens});
}

void Session::StepFrames(std::span<const int64_t> slots, std::span<const float> frames) {
  const int64_t rows = model_.CheckFrames(frames);
  Check(std::ssize(slots) == rows, "runtime",
        "a step must have one row of frames for each slot, but has {} for {}", rows, slots.size());
  StepSlots(slots, {.frames = frames.data()});
}

void Session::StepSlots(std::span<const int64_t> slots, const StepTokens& read) {
  Check(slots.size() <= lengths_.size(), "runtime",
        "a step must have at most {} slots, one each, but has {}", lengths_.size(), slots.size());
  const int64_t n = static_cast<int64_t>(slots.size()), width = model_.config().outputs();
  const int64_t layers = model_.config().layers();
  ++steps_;
  for (int64_t i = 0; i < n; ++i) {
    CheckGrowth(slots[i], 1);
    Check(std::exchange(last_step_[slots[i]], steps_) != steps_, "runtime",
          "the slots of a step must be distinct, but {} occurs twice", slots[i]);
    row_position_[i] = lengths_[slots[i]];
    for (int64_t layer = 0; layer < layers; ++layer) {
      float* state = State(slots[i]) + layers_[layer].offset;
      row_state_[layer * n + i] = state;
      row_history_[layer * n + i] = state + layers_[layer].mixer_floats;
    }
  }
  // With enough sequences every thread takes its own through all layers, without a barrier; with
  // few, the threads share each matrix.
  const int64_t threads = omp_get_max_threads();
  const int64_t rows = n < 4 * threads ? n : std::min(kGroupRows, (n + threads - 1) / threads);
  const int64_t groups = n == 0 ? 0 : (n + rows - 1) / rows;
#pragma omp parallel for schedule(dynamic) if (groups > 1)
  for (int64_t g = 0; g < groups; ++g) {
    StepRows(read, n, g * rows, std::min(rows, n - g * rows));
  }
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(row_outputs_.data() + i * width, width, outputs_.data() + slots[i] * width);
    ++lengths_[slots[i]];
  }
}

namespace {

Array WithoutTime(const Array& a) {  // [rows,1,H,K] -> [rows,H,K], [rows,1,H] -> [rows,H]
  if (!a.present()) return a;
  Array b{.data = a.data, .dtype = a.dtype, .rank = a.rank - 1};
  b.shape = {a.shape[0], a.shape[2], a.shape[3]};
  b.stride = {a.stride[0], a.stride[2], a.stride[3]};
  if (b.rank == 2) b.shape[2] = b.stride[2] = 0;
  return b;
}

}  // namespace

void Session::StepRows(const StepTokens& read, int64_t n, int64_t begin, int64_t rows) {
  const PackedModel::TokenRows here{begin, rows, 1, &row_position_[begin]};
  if (read.frames != nullptr) {
    model_.EmbedFrames(read.frames + begin * model_.config().row_width(), here, workspace_);
  } else {
    model_.Embed(read.tokens.subspan(begin, rows), here, workspace_);
  }
  StepInputs in{};
  in.length = &row_position_[begin];
  in.capacity = capacity_;
  for (int64_t layer = 0; layer < model_.config().layers(); ++layer) {
    const PackedLayer::Views views =
        model_.Before(layer, here, &row_history_[layer * n + begin], workspace_);
    in.q = WithoutTime(views.q), in.k = WithoutTime(views.k), in.v = WithoutTime(views.v);
    in.g = WithoutTime(views.g), in.beta = WithoutTime(views.beta), in.o = WithoutTime(views.o);
    in.options = model_.mixer_options(layer);
    in.state = &row_state_[layer * n + begin];
    model_.mixer(layer).step(in);
    model_.After(layer, here, workspace_);
  }
  model_.Head(workspace_, begin, rows, row_outputs_.data() + begin * model_.config().outputs());
}

}  // namespace linattn
