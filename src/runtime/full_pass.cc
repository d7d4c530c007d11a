#include "runtime/full_pass.h"

#include <omp.h>
#include <string.h>

#include <vector>

#include "base/error.h"

namespace linattn {

std::span<const float> FullPass::Run(std::span<const int32_t> tokens, int64_t B,
                                     Positions positions) {
  const ModelConfig& c = model_.config();
  const int64_t rows = static_cast<int64_t>(tokens.size());
  Check(B >= 1 && rows % B == 0, "runtime",
        "tokens must be [B,T] with B at least 1, but are {} for B = {}", rows, B);
  const int64_t T = rows / B;
  Check(T >= 1 && T <= c.max_len, "runtime",
        "a sequence must have from 1 to {} tokens, the model's maximum, but has {}", c.max_len, T);
  std::vector<int64_t> place(rows);
  for (int64_t i = 0; i < rows; ++i) place[i] = i % T;
  for (int64_t b = 0; b < B; ++b) model_.CheckTokens(tokens.subspan(b * T, T), 0);
  if (workspace_.rows < rows) workspace_ = Workspace(c, rows);

  const PackedModel::TokenRows here{0, B, T, place.data()};
  model_.Embed(tokens, here, workspace_);
  for (int64_t layer = 0; layer < c.layers(); ++layer) {
    Mix(layer, model_.Before(layer, here, nullptr, workspace_));
    model_.After(layer, here, workspace_);
  }
  const int64_t wanted = positions == Positions::kAll ? rows : B;
  if (positions == Positions::kLast) {  // gather the last rows to the front
    for (int64_t b = 0; b < B; ++b) {
      memmove(workspace_.x.data() + b * c.dim, workspace_.x.data() + (b * T + T - 1) * c.dim,
              c.dim * sizeof(float));
    }
  }
  outputs_.Reserve(wanted * c.outputs());
  model_.Head(workspace_, 0, wanted, outputs_.data());
  return {outputs_.data(), static_cast<size_t>(wanted * c.outputs())};
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
