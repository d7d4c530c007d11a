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
constexpr int64_t kGroupRows = 32;  // sequences that a thread takes through the layers together
constexpr int64_t kSharedRows = 4;  // a thread's sequences, below which the threads share them,
constexpr int64_t kSharedWork = 1 << 16;  // unless so few products are not worth two meetings

constexpr int64_t kRowsApart = 16;  // between those of two threads, see ThreadRoom

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
    const MixerDims d = StateDimsOf(c, layer);
    layers_.push_back({state_floats_, MixerStateFloats(c, layer, capacity_),
                       model.mixer(layer).family == Family::kState ? d.HV / d.H * d.F * d.V : 0});
    state_floats_ += StateFloats(c, layer, capacity_);
  }
  slot_stride_ = RoundUp(state_floats_, 16);
  lengths_.assign(slots, 0);
  last_step_.assign(slots, 0);
  states_ = FloatBuffer(slots * slot_stride_);
  outputs_ = FloatBuffer(slots * c.outputs());
  // Where threads share sequences, each has rows of its own.
  const int64_t shared = (std::min(slots, kTerms * kSharedRows) + kRowsApart) * kTerms;
  workspace_ = Workspace(c, std::max({slots, shared, std::min(kPrefillRows, capacity_)}));
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
  LayerRows rows = model_.RowsOf(workspace_, 0, 1, T);
  rows.places = row_position_.data();
  model_.Embed(tokens, rows);
  for (int64_t layer = 0; layer < model_.config().layers(); ++layer) {
    float* state = State(slot) + layers_[layer].offset;
    float* history = state + layers_[layer].mixer_floats;
    rows.history = &history;
    const PackedLayer::Views views = model_.Before(layer, rows, workspace_);
    const MixerInputs in = InputsOf(views, model_.mixer_options(layer));
    model_.mixer(layer).prefill(in, views.o, state, lengths_[slot], capacity_);
    model_.After(layer, rows, workspace_);
  }
  lengths_[slot] += T;
  const LayerRows last = model_.RowsOf(workspace_, T - 1, 1, 1);
  model_.Head(last, workspace_, outputs_.data() + slot * model_.config().outputs());
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
  step_rows_ = n;
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
  const int64_t threads = omp_get_max_threads();
  workspace_.ReserveThreads();
  const bool share = n * model_.layer(0).products() >= kSharedWork;
  if (n < kSharedRows * threads) {
    const auto team = static_cast<int>(share ? std::min(threads, kTerms) : 1);
    barrier_.Reset();
#pragma omp parallel num_threads(team) if (team > 1)
    StepShare(read, omp_get_thread_num(), omp_get_num_threads());
  } else {
    const int64_t rows = std::min(kGroupRows, (n + threads - 1) / threads);
    const int64_t groups = (n + rows - 1) / rows;
#pragma omp parallel for schedule(dynamic) if (groups > 1 && share)
    for (int64_t g = 0; g < groups; ++g) {
      StepGroup(read, g * rows, std::min(rows, n - g * rows));
    }
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

// Of the sequences [first, first + rows) of a step, in the workspace's rows from `begin` on.
LayerRows Session::RowsOfStep(int64_t begin, int64_t first, int64_t rows, int thread) {
  LayerRows r = model_.RowsOf(workspace_, begin, rows, 1);
  r.places = &row_position_[first];
  r.prepared = &workspace_.threads[thread]->prepared;
  return r;
}

void Session::Embed(const StepTokens& read, int64_t first, const LayerRows& r) const {
  if (read.frames != nullptr)
    model_.EmbedFrames(read.frames + first * model_.config().row_width(), r);
  else
    model_.Embed(read.tokens.subspan(first, r.rows()), r);
}

StepInputs Session::InputsOfStep(int64_t layer, const LayerRows& r, int64_t first) const {
  const PackedLayer& packed = model_.layer(layer);
  const PackedLayer::Views views = packed.ViewsOf(r);
  StepInputs in{};
  in.q = WithoutTime(views.q), in.k = WithoutTime(views.k), in.v = WithoutTime(views.v);
  in.g = WithoutTime(views.g), in.beta = WithoutTime(views.beta), in.o = WithoutTime(views.o);
  in.state = &row_state_[layer * step_rows_ + first];
  in.length = &row_position_[first];
  in.capacity = capacity_;
  in.options = packed.options();
  return in;
}

// Takes sequences through all layers, without a meeting of threads.
void Session::StepGroup(const StepTokens& read, int64_t first, int64_t rows) {
  LayerRows r = RowsOfStep(first, first, rows, omp_get_thread_num());
  const LayerShare all;
  Embed(read, first, r);
  for (int64_t i = 0; i < model_.config().layers(); ++i) {
    const PackedLayer& layer = model_.layer(i);
    r.history = &row_history_[i * step_rows_ + first];
    layer.Project(r, all);
    layer.ConvolveToken(r, all);
    layer.Turn(r, all);
    StepInputs in = InputsOfStep(i, r, first);
    in.share = layer.Heads(all);
    model_.mixer(i).step(in);
    layer.Out(r, all);
    layer.Mlp(r, all);
    layer.Finish(r);
  }
  model_.Head(r, 0, 1, row_outputs_.data() + first * model_.config().outputs());
}

// Of the first sequence: to come while the thread waits for the others.
void Session::PrefetchState(int64_t layer, const LayerShare& share) const {
  const HeadShare heads = model_.layer(layer).Heads(share);
  const float* state = row_state_[layer * step_rows_];
  const int64_t floats = layers_[layer].head_floats;
  for (int64_t h = heads.begin; h < heads.end; ++h) {  // in StepState's directions
    const float* head = state + h * floats + (h % 2 == 1 ? floats - 16 : 0);
    const int64_t by = h % 2 == 1 ? -16 : 16;
    for (int64_t i = 0; i < floats; i += 16, head += by) __builtin_prefetch(head, 1, 2);
  }
}

// All sequences of the step, a thread's share of every layer. What a thread makes of a token is its
// own, except the terms of the two sums of a layer, which all threads then read.
void Session::StepShare(const StepTokens& read, int thread, int team) {
  const int64_t rows = step_rows_;
  LayerRows r = RowsOfStep(thread * (rows + kRowsApart), 0, rows, thread);
  const LayerRows shared = RowsOfStep(0, 0, rows, 0);
  r.attention = shared.attention, r.mlp = shared.mlp;
  const LayerShare share{thread * kTerms / team, (thread + 1) * kTerms / team};
  Embed(read, 0, r);
  for (int64_t i = 0; i < model_.config().layers(); ++i) {
    const PackedLayer& layer = model_.layer(i);
    r.history = &row_history_[i * step_rows_];
    layer.Project(r, share);
    layer.ConvolveToken(r, share);
    layer.Turn(r, share);
    StepInputs in = InputsOfStep(i, r, 0);
    in.share = layer.Heads(share);
    if (in.share.begin < in.share.end) model_.mixer(i).step(in);
    layer.Out(r, share);
    barrier_.Wait(team);
    layer.Mlp(r, share);
    if (i + 1 < model_.config().layers()) PrefetchState(i + 1, share);
    barrier_.Wait(team);
    layer.Finish(r);
  }
  model_.Head(r, thread, team, row_outputs_.data());
  if (team > 1) barrier_.Wait(team);  // here and not where OpenMP's team ends, which spins for long
}

}  // namespace linattn
