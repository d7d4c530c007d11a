#include "train/bench_kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>

namespace linattn {
namespace {

using at::Tensor;
using bench::Baseline;
using bench::MixerProblem;
using bench::Pass;
using bench::StepProblem;

constexpr int64_t kChunk = 64;

// A view of the problem's memory; undefined if it is absent.
Tensor View(const Array& a) {
  if (!a.present()) return Tensor();
  return at::from_blob(a.data, at::IntArrayRef(a.shape.data(), a.rank),
                       at::IntArrayRef(a.stride.data(), a.rank), at::kFloat);
}

struct Inputs {
  Tensor q, k, v, g, beta;  // [B,T,H,channels], [B,T,H] or [B,T,H,K], [B,T,H]

  explicit Inputs(const MixerInputs& in)
      : q(View(in.q)), k(View(in.k)), v(View(in.v)), g(View(in.g)), beta(View(in.beta)) {}

  std::vector<Tensor*> Given() {
    std::vector<Tensor*> given;
    for (Tensor* x : {&q, &k, &v, &g, &beta})
      if (x->defined()) given.push_back(x);
    return given;
  }
};

// What the mixer's default feature map does to q and k.
Tensor Phi(const Mixer& mixer, const Tensor& x) {
  if (mixer.write == Write::kDelta)  // as the problem has it
    return x * at::rsqrt((x * x).sum(-1, true) + 1e-6);
  return mixer.normalised ? at::elu(x) + 1 : x;
}

double ScaleOf(const Mixer& mixer, const Tensor& q) {
  return mixer.normalised && mixer.family == Family::kState
             ? 1.0
             : 1 / std::sqrt(static_cast<double>(q.size(-1)));
}

// [B,T,H,...] -> [B,H,N,C,...], the last chunk filled with zeros, which change nothing.
Tensor Chunks(const Tensor& x, int64_t N) {
  Tensor y = (x.dim() == 3 ? x.unsqueeze(-1) : x).transpose(1, 2);
  if (y.size(2) < N * kChunk) y = at::constant_pad_nd(y, {0, 0, 0, N * kChunk - y.size(2)});
  return y.reshape({y.size(0), y.size(1), N, kChunk, y.size(3)});
}

// The chunkwise form with one product a chunk and head: (1) to (18) of docs/mixers.md.
Tensor StateForward(const Mixer& mixer, const Inputs& x) {
  const int64_t T = x.q.size(1), N = (T + kChunk - 1) / kChunk;
  const Tensor q = Chunks(Phi(mixer, x.q) * ScaleOf(mixer, x.q), N);
  const Tensor k = Chunks(Phi(mixer, x.k), N), v = Chunks(x.v, N);
  Tensor q_in = q, k_in = k, k_out = k, k_end = k,
         a;  // with decay from the chunk's start, to its end
  if (x.g.defined()) {
    const Tensor G = Chunks(x.g, N).cumsum(3), end = G.slice(3, kChunk - 1);
    const Tensor grow = G.exp();
    q_in = q * grow, k_in = k * grow, k_out = k / grow, k_end = k * (end - G).exp();
    a = end.exp().transpose(3, 4);  // [B,H,N,K or 1,1]
  }
  const Tensor A = q_in.matmul(k_out.transpose(3, 4)).tril();
  Tensor u = v, w;
  if (x.beta.defined()) {
    const Tensor beta = Chunks(x.beta, N);
    const Tensor M = (beta * k_in.matmul(k_out.transpose(3, 4))).tril(-1);
    u = at::linalg_solve_triangular(M, beta * v, false, true, true);
    w = at::linalg_solve_triangular(M, beta * k_in, false, true, true);
  }
  Tensor o;
  if (!a.defined() && !w.defined()) {  // the states before all chunks at once
    const Tensor kv = k.transpose(3, 4).matmul(v), S = kv.cumsum(2) - kv;
    o = q.matmul(S) + A.matmul(v);
  } else {
    Tensor S = at::zeros({q.size(0), q.size(1), q.size(4), v.size(4)});
    std::vector<Tensor> outputs;
    for (int64_t n = 0; n < N; ++n) {
      const Tensor un = w.defined() ? u.select(2, n) - w.select(2, n).matmul(S) : u.select(2, n);
      outputs.push_back(q_in.select(2, n).matmul(S) + A.select(2, n).matmul(un));
      const Tensor kept = a.defined() ? a.select(2, n) * S : S;
      S = kept + k_end.select(2, n).transpose(2, 3).matmul(un);
    }
    o = at::stack(outputs, 2);
  }
  if (mixer.normalised) {
    const Tensor z = k.flatten(2, 3).cumsum(2);
    o = o / ((q.flatten(2, 3) * z).sum(-1, true).reshape_as(o.narrow(4, 0, 1)) + 1e-6);
  }
  return o.flatten(2, 3).slice(2, 0, T).transpose(1, 2);
}

// [T,T]: what head h does not see.
Tensor Hidden(const Mixer& mixer, const MixerOptions& options, int64_t T, int64_t h) {
  const Tensor hidden = at::ones({T, T}, at::kBool).triu(1);
  if (mixer.name != "sparse") return hidden;
  const Tensor t = at::arange(T), apart = t.unsqueeze(1) - t;
  const int64_t stride = options.sparse.stride;
  return hidden.logical_or_(h % 2 == 0 ? apart.ge(stride) : apart.remainder(stride).ne(0));
}

Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& hidden) {
  return q.matmul(k.transpose(-1, -2)).masked_fill(hidden, -INFINITY).softmax(-1).matmul(v);
}

// Whole rows of scores.
Tensor SoftmaxForward(const Mixer& mixer, const MixerOptions& options, const Inputs& x) {
  const int64_t T = x.q.size(1), H = x.q.size(2);
  const Tensor q = (x.q * ScaleOf(mixer, x.q)).transpose(1, 2);
  const Tensor k = x.k.transpose(1, 2), v = x.v.transpose(1, 2);
  std::vector<Tensor> hidden, heads;
  for (int64_t h = 0; h < (mixer.name == "sparse" ? 2 : 1); ++h)
    hidden.push_back(Hidden(mixer, options, T, h));
  if (hidden.size() == 1) return Attend(q, k, v, hidden[0]).transpose(1, 2);
  for (int64_t h = 0; h < H; ++h)
    heads.push_back(Attend(q.select(1, h), k.select(1, h), v.select(1, h),
                           hidden[static_cast<size_t>(h) % hidden.size()]));
  return at::stack(heads, 2);
}

double ErrorOf(const Tensor& theirs, const Tensor& ours) {
  const Tensor part = ours.slice(1, 0, theirs.size(1));
  return ((theirs - part).abs().max() / part.abs().max()).item<double>();
}

// Tokens whose scores, of which autograd keeps three matrices, take no more than 128 MB.
int64_t TokensOfScores(const bench::Shape& shape, Pass pass) {
  int64_t T = shape.T;
  const int64_t matrices = pass == Pass::kBackward ? 3 : 1;
  while (4 * matrices * shape.B * shape.H * T * T > int64_t{1} << 27) T /= 2;
  return T;
}

// The library of matrix products that LibTorch has loaded: its speed is most of a ratio.
std::string BlasName() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t name = line.rfind('/') + 1;
    for (const char* library : {"mkl", "openblas", "blis", "blas"})
      if (line.find(library, name) != std::string::npos) return line.substr(name);
  }
  return "unknown";
}

// What a baseline owns.
struct Run {
  Inputs in;
  MixerOptions options;
  Tensor o, d_o;
  std::vector<Tensor> leaves, gradients;
};

Baseline WholeSequence(const Mixer& mixer, Pass pass, const MixerProblem<float>& p) {
  const bool state = mixer.family == Family::kState;
  auto run = std::make_shared<Run>(Run{Inputs(p.in), p.in.options, {}, {}, {}, {}});
  const auto forward = [&mixer, run, state] {
    return state ? StateForward(mixer, run->in) : SoftmaxForward(mixer, run->options, run->in);
  };
  Baseline baseline;
  baseline.how = state ? fmt::format("chunkwise, chunks of {}", kChunk)
                       : "masked products and softmax, whole rows";
  const int64_t T = p.shape.T, most = state ? T : TokensOfScores(p.shape, pass);
  if (most < T) {
    baseline.how += fmt::format(", T={} scaled", most);
    const double times = static_cast<double>(T) / static_cast<double>(most);
    baseline.scale = times * times;
    for (Tensor* x : run->in.Given()) *x = x->slice(1, 0, most);
  }
  if (pass == Pass::kForward) {
    baseline.run = [run, forward] {
      const at::NoGradGuard guard;
      run->o = forward();
    };
    baseline.error = [run, o = p.out.o] { return ErrorOf(run->o, View(o)); };
    return baseline;
  }
  run->d_o = View(p.grad.d_o).slice(1, 0, most);
  for (Tensor* x : run->in.Given()) {
    *x = x->detach().clone().requires_grad_(true);
    run->leaves.push_back(*x);
  }
  run->o = forward();
  baseline.run = [run] {
    run->gradients = torch::autograd::grad({run->o}, run->leaves, {run->d_o}, true);
  };
  // That of q sees the past alone: it is the same for a part of the sequence.
  baseline.error = [run, d_q = p.grad.d_q] { return ErrorOf(run->gradients[0], View(d_q)); };
  return baseline;
}

// The states of the step's sequences as tensors, and one step on them.
struct Steps {
  const Mixer& mixer;
  Inputs in;  // T = 1
  Tensor S, z, keys, values;
  int64_t length;
  Tensor o;  // [B,1,H,V]

  static Tensor Row(const Tensor& x) { return x.transpose(1, 2); }  // [B,H,1,channels]

  void StateStep() {
    const Tensor q = Row(Phi(mixer, in.q)) * ScaleOf(mixer, in.q), k = Row(Phi(mixer, in.k));
    const Tensor v = Row(in.v);
    if (in.g.defined())
      S.mul_(Row(in.g.dim() == 3 ? in.g.unsqueeze(-1) : in.g).exp().transpose(2, 3));
    Tensor u = v;
    if (in.beta.defined()) u = Row(in.beta.unsqueeze(-1)) * (v - k.matmul(S));
    S.add_(k.transpose(2, 3) * u);
    o = q.matmul(S);
    if (mixer.normalised) {
      z.add_(k);
      o = o / ((q * z).sum(-1, true) + 1e-6);
    }
    o = o.transpose(1, 2);
  }

  void CacheStep() {
    keys.select(2, length).copy_(in.k.squeeze(1));
    values.select(2, length).copy_(in.v.squeeze(1));
    const Tensor q = Row(in.q) * ScaleOf(mixer, in.q);
    const Tensor k = keys.narrow(2, 0, length + 1), v = values.narrow(2, 0, length + 1);
    o = q.matmul(k.transpose(2, 3)).softmax(-1).matmul(v).transpose(1, 2);
  }
};

// B copies of a part of the block that a sequence starts from.
Tensor StateCopies(const StepProblem& p, int64_t offset, at::IntArrayRef shape) {
  const Tensor one =
      at::from_blob(const_cast<float*>(p.start().data()) + offset, shape, at::kFloat);
  std::vector<int64_t> all = one.sizes().vec();
  all.insert(all.begin(), p.token.shape.B);
  return one.unsqueeze(0).expand(all).clone();
}

Baseline OneStep(const Mixer& mixer, const StepProblem& p) {
  const int64_t H = p.token.shape.H, K = p.token.shape.K, V = p.token.shape.V;
  const bool state = mixer.family == Family::kState;
  auto s =
      std::make_shared<Steps>(Steps{mixer, Inputs(p.token.in), {}, {}, {}, {}, p.tokens(), {}});
  if (state) {
    s->S = StateCopies(p, 0, {H, K, V});
    if (mixer.normalised) s->z = StateCopies(p, H * K * V, {H, 1, K});
  } else {
    s->keys = StateCopies(p, 0, {H, p.capacity(), K});
    s->values = StateCopies(p, H * p.capacity() * K, {H, p.capacity(), V});
  }
  Baseline baseline{.how = "tensor operations on all states"};
  if (!state) baseline.how = "products and softmax over the cache";
  baseline.run = [s, state] {
    const at::NoGradGuard guard;
    state ? s->StateStep() : s->CacheStep();
  };
  baseline.error = [s, o = p.token.out.o] { return ErrorOf(s->o, View(o)); };
  return baseline;
}

}  // namespace

Baseline LibTorchBaseline(const Mixer& mixer, Pass pass, const MixerProblem<float>& problem,
                          const StepProblem* steps) {
  at::set_num_threads(omp_get_max_threads());
  const bool plain = mixer.family == Family::kState
                         ? mixer.feature_map == "elu1" || mixer.feature_map == "identity"
                         : mixer.name == "softmax" || (mixer.name == "sparse" && !steps);
  if (!plain) return {.how = "none: it has no plain form"};
  Baseline baseline = steps ? OneStep(mixer, *steps) : WholeSequence(mixer, pass, problem);
  baseline.how += "; " + BlasName();
  return baseline;
}

}  // namespace linattn
