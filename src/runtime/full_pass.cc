#include "runtime/full_pass.h"

#include <omp.h>
#include <string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"

namespace linattn {

std::span<const float> FullPass::Run(std::span<const int32_t> tokens, int64_t B,
                                     Positions positions) {
  const int64_t T = Length(static_cast<int64_t>(tokens.size()), B);
  for (int64_t b = 0; b < B; ++b) model_.CheckTokens(tokens.subspan(b * T, T), 0);
  return Layers(B, T, positions, [&](const LayerRows& rows) { model_.Embed(tokens, rows); });
}

std::span<const float> FullPass::RunFrames(std::span<const float> frames, int64_t B,
                                           Positions positions) {
  const int64_t T = Length(model_.CheckFrames(frames), B);
  return Layers(B, T, positions, [&](const LayerRows& rows) {
    model_.EmbedFrames(frames.data(), rows, workspace_);
  });
}

int64_t FullPass::Length(int64_t rows, int64_t B) const {
  Check(B >= 1 && rows % B == 0, "runtime",
        "tokens must be [B,T] with B at least 1, but are {} for B = {}", rows, B);
  const int64_t T = rows / B, most = model_.config().max_len;
  Check(T >= 1 && T <= most, "runtime",
        "a sequence must have from 1 to {} tokens, the model's maximum, but has {}", most, T);
  return T;
}

template <class Embed>
std::span<const float> FullPass::Layers(int64_t B, int64_t T, Positions positions,
                                        const Embed& embed) {
  const ModelConfig& c = model_.config();
  const int64_t rows = B * T;
  std::vector<int64_t> place(rows);
  for (int64_t i = 0; i < rows; ++i) place[i] = i % T;
  if (workspace_.rows < rows) workspace_ = Workspace(c, rows);

  LayerRows here = model_.RowsOf(workspace_, 0, B, T);
  here.places = place.data();
  embed(here);
  bool turned = false;
  for (int64_t layer = 0; layer < c.layers(); ++layer) {
    const bool reversed = model_.layer(layer).plan().reversed;
    if (std::exchange(turned, reversed) != reversed) Turn(B, T);
    Mix(layer, model_.Before(layer, here, workspace_));
    model_.After(layer, here, workspace_);
  }
  if (turned) Turn(B, T);
  const int64_t wanted = positions == Positions::kAll ? rows : B;
  if (positions == Positions::kLast) {  // gather the last rows to the front
    for (int64_t b = 0; b < B; ++b) {
      memmove(workspace_.x.data() + b * c.dim, workspace_.x.data() + (b * T + T - 1) * c.dim,
              c.dim * sizeof(float));
    }
  }
  outputs_.Reserve(wanted * c.outputs());
  here.T = wanted / B;
  model_.Head(here, workspace_, outputs_.data());
  return {outputs_.data(), static_cast<size_t>(wanted * c.outputs())};
}

// Reverses the order of the rows of x within each sequence.
void FullPass::Turn(int64_t B, int64_t T) {
  const int64_t dim = model_.config().dim;
  for (int64_t b = 0; b < B; ++b) {
    float* x = workspace_.x.data() + b * T * dim;
    for (int64_t i = 0, j = T - 1; i < j; ++i, --j)
      std::swap_ranges(x + i * dim, x + (i + 1) * dim, x + j * dim);
  }
}

void FullPass::Mix(int64_t layer, const PackedLayer::Views& views) {
  const Mixer& mixer = model_.mixer(layer);
  const MixerInputs in = InputsOf(views, model_.mixer_options(layer));
  const int64_t bytes = mixer.scratch_bytes(CheckInputs(mixer, in), omp_get_max_threads());
  scratch_.Reserve((bytes + 3) / 4);
  MixerOutputs out;
  out.o = views.o;
  mixer.forward(in, out, scratch_.data());
}

}  // namespace linattn
