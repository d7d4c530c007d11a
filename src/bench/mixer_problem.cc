#include "bench/mixer_problem.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"

namespace linattn::bench {
namespace {

MixerDims DimsOf(const Mixer& mixer, const Shape& s, int64_t T) {
  const bool maps = mixer.family == Family::kState && mixer.write == Write::kAdd;
  const int64_t F = maps ? FeatureMapByName(mixer.feature_map).Features(s.K) : s.K;
  return {.B = s.B, .T = T, .S = T, .H = s.H, .HV = s.H, .K = s.K, .F = F, .V = s.V, .N = s.B};
}

// [B,1,...] as [B,...].
Array WithoutTime(Array a) {
  for (int i = 1; i + 1 < a.rank; ++i) a.shape[i] = a.shape[i + 1], a.stride[i] = a.stride[i + 1];
  a.rank -= a.rank > 0;
  return a;
}

// Worst difference from the reference over its largest value. The reference is a head of fast's
// first tokens: [T,channels] against [B,T,H,channels].
double ErrorOf(const Array& fast, const std::vector<double>& reference) {
  double worst = 0, largest = 0;
  const int64_t channels = fast.rank == 4 ? fast.shape[3] : 1;
  for (size_t i = 0; i < reference.size(); ++i) {
    const int64_t t = static_cast<int64_t>(i) / channels, c = static_cast<int64_t>(i) % channels;
    const double difference = std::abs(*fast.At<float>(0, t, 0, c) - reference[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
    largest = std::max(largest, std::abs(reference[i]));
  }
  return largest > 0 ? worst / largest : worst;
}

void CheckClose(const Mixer& mixer, const char* what, const Array& fast,
                const std::vector<double>& reference, double bound) {
  if (!fast.present()) return;
  const double error = ErrorOf(fast, reference);
  Check(error <= bound, "bench",
        "{}'s {} must be right before it is timed, within {:.2g} of the reference, but is off by "
        "{:.2g}",
        mixer.name, what, bound, error);
}

// Tokens whose reference takes about a second.
int64_t TokensOfReference(const Mixer& mixer, Pass pass, const Shape& shape) {
  const double most = pass == Pass::kForward ? 2e8 : 5e7;
  int64_t T = std::min<int64_t>(shape.T, pass == Pass::kForward ? 8192 : 2048);
  while (T > 1 && mixer.flops(DimsOf(mixer, {1, T, 1, shape.K, shape.V}, T), true) > most) T /= 2;
  return T;
}

}  // namespace

template <class R>
Array MixerProblem<R>::Make(std::vector<R>& memory, int64_t channels, bool keep_axis) {
  memory.resize(shape.B * shape.T * shape.H * channels);
  Array array = MakeArray(memory.data(), {shape.B, shape.T, shape.H, channels});
  if (!keep_axis) array.rank = 3;
  return array;
}

template <class R>
void MixerProblem<R>::Allocate(const Mixer& mixer) {
  in.q = Make(q, shape.K), in.k = Make(k, shape.K), in.v = Make(v, shape.V);
  out.o = Make(o, shape.V);
  if (mixer.normalised) out.norm = Make(norm, 1, false);
  if (mixer.decay != Decay::kNone) {
    const int64_t channels = mixer.decay == Decay::kScalar ? 1 : shape.K;
    in.g = Make(g, channels, channels > 1 || mixer.decay == Decay::kPerChannel);
  }
  if (mixer.write == Write::kDelta) {
    in.beta = Make(beta, 1, false);
    in.options.feature_map = &FeatureMapByName("l2");  // keys of norm 1, as layers give them
  }
}

template <class R>
MixerProblem<R>::MixerProblem(const Mixer& mixer, const Shape& s) : shape(s) {
  Allocate(mixer);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (auto* x : {&q, &k, &v})
    for (R& value : *x) value = normal(random);
  if (mixer.shared_qk) k = q;
  for (R& value : g) value = -std::abs(normal(random)) / 16;
  for (R& value : beta) value = 1 / (1 + std::exp(normal(random)));
}

template <class R>
void MixerProblem<R>::AddGradients() {
  grad.d_o = Make(d_o, shape.V);
  grad.d_q = Make(d_q, shape.K), grad.d_k = Make(d_k, shape.K), grad.d_v = Make(d_v, shape.V);
  if (in.g.present()) grad.d_g = Make(d_g, in.g.rank == 4 ? shape.K : 1, in.g.rank == 4);
  if (in.beta.present()) grad.d_beta = Make(d_beta, 1, false);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (R& value : d_o) value = normal(random);
}

template class MixerProblem<float>;
template class MixerProblem<double>;

namespace {

// Head 0 of the first tokens of sequence 0: [T,channels].
void CopyHead(const Array& from, int64_t T, std::vector<double>& to) {
  if (!from.present()) return;
  const int64_t channels = from.rank == 4 ? from.shape[3] : 1;
  for (int64_t t = 0; t < T; ++t)
    for (int64_t c = 0; c < channels; ++c) to[t * channels + c] = *from.At<float>(0, t, 0, c);
}

void CopyHead(const MixerProblem<float>& from, int64_t T, MixerProblem<double>& to) {
  CopyHead(from.in.q, T, to.q), CopyHead(from.in.k, T, to.k), CopyHead(from.in.v, T, to.v);
  CopyHead(from.in.g, T, to.g), CopyHead(from.in.beta, T, to.beta);
  if (!to.d_o.empty()) CopyHead(from.grad.d_o, T, to.d_o);
}

}  // namespace

int64_t BytesOf(const MixerProblem<float>& p) {
  int64_t floats = 0;
  for (const auto* x : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.o, &p.norm, &p.d_o, &p.d_q, &p.d_k,
                        &p.d_v, &p.d_g, &p.d_beta})
    floats += static_cast<int64_t>(x->size());
  return floats * static_cast<int64_t>(sizeof(float));
}

Scratch::Scratch(const Mixer& mixer, const MixerInputs& in)
    : bytes_(mixer.scratch_bytes(CheckInputs(mixer, in), omp_get_max_threads())),
      memory_(hwy::AllocateAligned<uint8_t>(bytes_)) {
  Check(memory_ != nullptr, "bench", "there must be memory for {} bytes of scratch, but is not",
        bytes_);
}

StepProblem::StepProblem(const Mixer& mixer, const Shape& shape)
    : token(mixer, {shape.B, 1, shape.H, shape.K, shape.V}),
      mixer_(mixer),
      T_(shape.T),
      capacity_(shape.T + kRoom),
      lengths_(shape.B) {
  MixerProblem<float> prompt(mixer, {1, shape.T, shape.H, shape.K, shape.V});
  const MixerDims dims = CheckInputs(mixer, prompt.in);
  start_.resize(mixer.state_floats(dims, prompt.in.options, capacity_));
  mixer.prefill(prompt.in, prompt.out.o, start_.data(), 0, capacity_);
  stride_ = (static_cast<int64_t>(start_.size()) + 15) / 16 * 16;
  memory_ = FloatBuffer(shape.B * stride_);
  for (int64_t b = 0; b < shape.B; ++b) blocks_.push_back(memory_.data() + b * stride_);
  in_.q = WithoutTime(token.in.q), in_.k = WithoutTime(token.in.k);
  in_.v = WithoutTime(token.in.v), in_.g = WithoutTime(token.in.g);
  in_.beta = WithoutTime(token.in.beta), in_.o = WithoutTime(token.out.o);
  in_.state = blocks_.data(), in_.length = lengths_.data(), in_.capacity = capacity_;
  in_.options = token.in.options;
  Restart();
}

void StepProblem::Restart() {
  for (float* block : blocks_) std::copy(start_.begin(), start_.end(), block);
  std::fill(lengths_.begin(), lengths_.end(), T_);
}

void StepProblem::Step() {
  mixer_.step(in_);
  for (int64_t& length : lengths_) ++length;
}

int64_t CheckRight(const Mixer& mixer, Pass pass, MixerProblem<float>& p) {
  const int64_t T = TokensOfReference(mixer, pass, p.shape);
  MixerProblem<double> reference(mixer, {1, T, 1, p.shape.K, p.shape.V});
  const Scratch scratch(mixer, p.in);
  const std::vector<float> d_o = p.d_o;
  if (pass == Pass::kBackward) {
    reference.AddGradients();
    for (int64_t b = 0; b < p.shape.B; ++b)
      std::fill(p.grad.d_o.At<float>(b) + T * p.grad.d_o.stride[1],
                p.grad.d_o.At<float>(b) + p.grad.d_o.stride[0], 0.0f);
  }
  CopyHead(p, T, reference);
  mixer.forward(p.in, p.out, scratch.get());
  mixer.forward_ref(reference.in, reference.out);
  CheckClose(mixer, "forward", p.out.o, reference.o, mixer.tolerance.forward);
  if (pass != Pass::kBackward) return T;
  mixer.backward(p.in, p.out, p.grad, scratch.get());
  mixer.backward_ref(reference.in, reference.out, reference.grad);
  const double bound = mixer.tolerance.backward;
  CheckClose(mixer, "d_q", p.grad.d_q, reference.d_q, bound);
  CheckClose(mixer, "d_k", p.grad.d_k, reference.d_k, bound);
  CheckClose(mixer, "d_v", p.grad.d_v, reference.d_v, bound);
  CheckClose(mixer, "d_g", p.grad.d_g, reference.d_g, bound);
  CheckClose(mixer, "d_beta", p.grad.d_beta, reference.d_beta, bound);
  p.d_o = d_o;
  return T;
}

int64_t CheckStepRight(const Mixer& mixer, const Shape& shape) {
  const int64_t T = std::min<int64_t>(shape.T, 256);
  StepProblem step(mixer, {1, T, shape.H, shape.K, shape.V});
  MixerProblem<float> prompt(mixer, {1, T, shape.H, shape.K, shape.V});
  MixerProblem<double> reference(mixer, {1, T + 1, 1, shape.K, shape.V});
  CopyHead(prompt, T, reference);
  const auto append = [](const Array& token, std::vector<double>& to) {
    if (!token.present()) return;
    std::vector<double> last(token.rank == 4 ? token.shape[3] : 1);
    CopyHead(token, 1, last);
    std::copy(last.begin(), last.end(), to.end() - static_cast<int64_t>(last.size()));
  };
  const MixerInputs& in = step.token.in;
  append(in.q, reference.q), append(in.k, reference.k), append(in.v, reference.v);
  append(in.g, reference.g), append(in.beta, reference.beta);
  step.Step();
  mixer.forward_ref(reference.in, reference.out);
  const std::vector<double> last(reference.o.end() - shape.V, reference.o.end());
  CheckClose(mixer, "step", step.token.out.o, last, mixer.tolerance.forward);
  return T + 1;
}

double FlopsOf(const Mixer& mixer, Pass pass, const Shape& shape) {
  if (pass == Pass::kStep)
    return mixer.flops(DimsOf(mixer, shape, shape.T + 1), true) -
           mixer.flops(DimsOf(mixer, shape, shape.T), true);
  return (pass == Pass::kBackward ? 2.5 : 1) * mixer.flops(DimsOf(mixer, shape, shape.T), true);
}

}  // namespace linattn::bench
