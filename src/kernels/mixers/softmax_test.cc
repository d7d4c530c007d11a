#include "kernels/mixers/softmax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"

// What is special to softmax; what every mixer owes is in kernels/mixer_suite_test.cc.
namespace linattn {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Shape {
  int64_t B = 1, T = 1, S = 0, H = 1, HV = 1, K = 4, V = 4;  // S = 0: as T
};

// A dense array that owns its memory, with its float64 twin for the reference.
class Tensor {
 public:
  Tensor() = default;
  Tensor(std::vector<int64_t> shape, float fill) : shape_(std::move(shape)) {
    int64_t size = 1;
    for (int64_t n : shape_) size *= n;
    data.assign(size, fill);
  }
  void Randomise(std::mt19937& random, float sigma = 1) {
    std::normal_distribution<float> normal(0, sigma);
    for (float& x : data) x = normal(random);
  }
  Array view() { return View(data.data()); }
  Array twin() { return twin_.assign(data.begin(), data.end()), View(twin_.data()); }
  void TakeTwin() { data.assign(twin_.begin(), twin_.end()); }

  std::vector<float> data;

 private:
  template <class T>
  Array View(T* p) {
    Array a = shape_.size() == 3 ? MakeArray(p, {shape_[0], shape_[1], shape_[2]})
                                 : MakeArray(p, {shape_[0], shape_[1], shape_[2], shape_[3]});
    return a;
  }
  std::vector<int64_t> shape_;
  std::vector<double> twin_;
};

struct Case {
  explicit Case(const Shape& s, const MixerOptions& options = {}, int seed = 1) : shape(s) {
    const int64_t S = s.S ? s.S : s.T;
    in.options = options;
    q = Tensor({s.B, s.T, s.H, s.K}, 0);
    k = Tensor({s.B, S, s.HV, s.K}, 0);
    v = Tensor({s.B, S, s.HV, s.V}, 0);
    d_o = Tensor({s.B, s.T, s.H, s.V}, 0);
    std::mt19937 random(seed);
    for (Tensor* x : {&q, &k, &v, &d_o}) x->Randomise(random);
    Clear();
  }

  void Clear() {
    o = Tensor({shape.B, shape.T, shape.H, shape.V}, kNaN);
    norm = Tensor({shape.B, shape.T, shape.H}, kNaN);
    d_q = q, d_k = k, d_v = v;
    for (Tensor* x : {&d_q, &d_k, &d_v}) x->data.assign(x->data.size(), kNaN);
  }

  void Forward() {
    in.q = q.view(), in.k = k.view(), in.v = v.view();
    const MixerDims dims = CheckInputs(k_softmax, in);
    scratch.resize(k_softmax.scratch_bytes(dims, kMaxThreads) / sizeof(float) + 16);
    k_softmax.forward(in, {.o = o.view(), .norm = norm.view(), .ST = {}, .zT = {}}, Scratch());
  }

  void Backward() {
    k_softmax.backward(in, {.o = o.view(), .norm = norm.view(), .ST = {}, .zT = {}}, Grads(),
                       Scratch());
  }

  // The same in float64, results rounded to float32.
  void Reference() {
    in.q = q.twin(), in.k = k.twin(), in.v = v.twin();
    const MixerOutputs out{.o = o.twin(), .norm = norm.twin(), .ST = {}, .zT = {}};
    k_softmax.forward_ref(in, out);
    MixerGradients grad;
    grad.d_o = d_o.twin(), grad.d_q = d_q.twin(), grad.d_k = d_k.twin(), grad.d_v = d_v.twin();
    k_softmax.backward_ref(in, out, grad);
    for (Tensor* x : {&o, &norm, &d_q, &d_k, &d_v}) x->TakeTwin();
  }

  MixerGradients Grads() {
    MixerGradients grad;
    grad.d_o = d_o.view(), grad.d_q = d_q.view(), grad.d_k = d_k.view(), grad.d_v = d_v.view();
    return grad;
  }
  void* Scratch() {
    auto address = reinterpret_cast<uintptr_t>(scratch.data());
    return reinterpret_cast<void*>((address + 63) / 64 * 64);
  }

  static constexpr int kMaxThreads = 64;
  Shape shape;
  MixerInputs in;
  Tensor q, k, v, d_o, o, norm, d_q, d_k, d_v;
  std::vector<float> scratch;
};

// max|x - ref| / max|ref|; infinities must agree, and NaN never passes.
double Error(const Tensor& x, const Tensor& reference) {
  EXPECT_EQ(x.data.size(), reference.data.size());
  double worst = 0, size = 1e-30;
  for (size_t i = 0; i < x.data.size(); ++i) {
    if (x.data[i] == reference.data[i]) continue;
    const double error = std::abs(double{x.data[i]} - reference.data[i]);
    worst = std::isfinite(error) ? std::max(worst, error) : kInf;
  }
  for (float r : reference.data) size = std::max<double>(size, std::isfinite(r) ? std::abs(r) : 0);
  return worst / size;
}

// Golden README, float32 chunked: forward 5e-6, gradients 2e-5.
void ExpectMatchesReference(Case& c) {
  c.Forward();
  c.Backward();
  Case r = c;
  r.Clear();
  r.Reference();
  EXPECT_LT(Error(c.o, r.o), 5e-6);
  EXPECT_LT(Error(c.norm, r.norm), 5e-6);
  EXPECT_LT(Error(c.d_q, r.d_q), 2e-5);
  EXPECT_LT(Error(c.d_k, r.d_k), 2e-5);
  EXPECT_LT(Error(c.d_v, r.d_v), 2e-5);
}

MixerOptions Cross(bool causal) { return {.causal = causal, .cross = true}; }

TEST(Softmax, TwoTokensByHand) {
  // Scores 0 and ln 3 for the second query: weights 1/4 and 3/4.
  Case c({.T = 2, .K = 1, .V = 1}, {.scale = 1});
  c.q.data = {1, 1}, c.k.data = {0, std::log(3.f)}, c.v.data = {4, 8};
  c.Forward();
  EXPECT_THAT(c.o.data, testing::ElementsAre(4.f, testing::FloatNear(7.f, 1e-6f)));
  EXPECT_THAT(c.norm.data, testing::ElementsAre(0.f, testing::FloatNear(std::log(4.f), 1e-6f)));
}

TEST(Softmax, MatchesReferenceOnShapes) {
  const Shape shapes[] = {{.T = 1},
                          {.B = 2, .T = 7, .H = 3, .HV = 3, .K = 5, .V = 4},
                          {.T = 33, .H = 2, .HV = 2, .K = 1, .V = 17},
                          {.T = 131, .K = 32, .V = 32},
                          {.B = 2, .T = 300, .H = 4, .HV = 2, .K = 24, .V = 40},
                          {.T = 517, .H = 2, .HV = 1, .K = 64, .V = 64}};
  for (const Shape& s : shapes) {
    for (bool causal : {true, false}) {
      SCOPED_TRACE(testing::Message() << "T=" << s.T << " K=" << s.K << " causal=" << causal);
      Case c(s, {.causal = causal});
      ExpectMatchesReference(c);
    }
  }
}

TEST(Softmax, MatchesReferenceWithWindow) {
  for (int64_t window : {2, 9, 64, 100, 1000}) {
    SCOPED_TRACE(window);
    Case c({.T = 333, .H = 2, .HV = 1, .K = 8, .V = 8}, {.window = window});
    ExpectMatchesReference(c);
  }
}

TEST(Softmax, TheLargestWindowSeesAll) {
  Case all({.T = 200, .K = 8, .V = 8});
  Case window({.T = 200, .K = 8, .V = 8}, {.window = std::numeric_limits<int64_t>::max()});
  for (Case* c : {&all, &window}) c->Forward(), c->Backward();
  EXPECT_EQ(window.o.data, all.o.data);
  EXPECT_EQ(window.d_k.data, all.d_k.data);
}

TEST(Softmax, WindowOfOneCopiesValues) {
  Case c({.T = 200, .K = 8, .V = 8}, {.window = 1});
  c.Forward();
  c.Backward();
  EXPECT_EQ(c.o.data, c.v.data);
  EXPECT_LT(Error(c.d_v, c.d_o), 1e-6);
  for (const Tensor* d : {&c.d_q, &c.d_k}) EXPECT_THAT(d->data, testing::Each(0.f));
}

TEST(Softmax, MatchesReferenceAcrossSequences) {
  for (auto [T, S] : {std::pair{5, 300}, {300, 5}, {1, 131}, {64, 65}}) {
    SCOPED_TRACE(testing::Message() << "T=" << T << " S=" << S);
    Case c({.B = 2, .T = T, .S = S, .H = 4, .HV = 2, .K = 6, .V = 3}, Cross(false));
    ExpectMatchesReference(c);
  }
}

TEST(Softmax, CausalCrossAlignsTheEnds) {
  Case all({.T = 200, .H = 2, .HV = 2, .K = 8, .V = 8});
  all.Forward();
  for (int64_t T : {1, 50, 137, 200}) {
    Case last({.T = T, .S = 200, .H = 2, .HV = 2, .K = 8, .V = 8}, Cross(true));
    last.q.data.assign(all.q.data.end() - T * 16, all.q.data.end());
    last.k = all.k, last.v = all.v;
    ExpectMatchesReference(last);
    Tensor expected = last.o;
    expected.data.assign(all.o.data.end() - T * 16, all.o.data.end());
    EXPECT_LT(Error(last.o, expected), 1e-6) << T;
  }
}

TEST(Softmax, RefusesCausalWithFewerKeysThanQueries) {
  Case c({.T = 5, .S = 4}, Cross(true));
  EXPECT_THAT([&] { c.Forward(); }, testing::ThrowsMessage<linattn::Error>(testing::AllOf(
                                        testing::HasSubstr("[softmax]"), testing::HasSubstr("5"),
                                        testing::HasSubstr("4"))));
}

TEST(Softmax, RefusesBadWindow) {
  Case negative({.T = 5}, {.window = -1});
  EXPECT_THROW(negative.Forward(), linattn::Error);
  Case full({.T = 5}, {.causal = false, .window = 3});
  EXPECT_THROW(full.Forward(), linattn::Error);
}

TEST(Softmax, GroupedHeadsEqualRepeatedHeads) {
  Case grouped({.B = 2, .T = 90, .H = 6, .HV = 2, .K = 8, .V = 5});
  Case repeated({.B = 2, .T = 90, .H = 6, .HV = 6, .K = 8, .V = 5});
  repeated.q = grouped.q, repeated.d_o = grouped.d_o;
  for (int64_t row = 0; row < 2 * 90; ++row) {
    for (int64_t h = 0; h < 6; ++h) {
      for (int c = 0; c < 8; ++c)
        repeated.k.data[(row * 6 + h) * 8 + c] = grouped.k.data[(row * 2 + h / 3) * 8 + c];
      for (int c = 0; c < 5; ++c)
        repeated.v.data[(row * 6 + h) * 5 + c] = grouped.v.data[(row * 2 + h / 3) * 5 + c];
    }
  }
  for (Case* c : {&grouped, &repeated}) c->Forward(), c->Backward();
  EXPECT_EQ(grouped.o.data, repeated.o.data);
  EXPECT_EQ(grouped.norm.data, repeated.norm.data);
  EXPECT_EQ(grouped.d_q.data, repeated.d_q.data);
  Tensor sum = grouped.d_k;
  for (int64_t row = 0; row < 2 * 90; ++row)
    for (int64_t h = 0; h < 2; ++h)
      for (int c = 0; c < 8; ++c) {
        float& x = sum.data[(row * 2 + h) * 8 + c] = 0;
        for (int j = 0; j < 3; ++j) x += repeated.d_k.data[(row * 6 + h * 3 + j) * 8 + c];
      }
  EXPECT_LT(Error(grouped.d_k, sum), 2e-6);
}

TEST(Softmax, RefusesHeadsThatDoNotDivide) {
  Case c({.T = 3, .H = 4, .HV = 3});
  EXPECT_THROW(c.Forward(), linattn::Error);
}

TEST(Softmax, QueryThatSeesNoKeyGivesZeroAndMinusInfinity) {
  // Row 0 has no valid key, row 1 two; what a masked key holds must not matter.
  Case c({.B = 2, .T = 3, .S = 4, .H = 2, .HV = 2}, Cross(false));
  std::vector<int64_t> lengths = {0, 2};
  c.in.segments.k_lengths = MakeArray(lengths.data(), {2});
  const size_t row = c.k.data.size() / 2;
  for (Tensor* x : {&c.k, &c.v}) {
    std::fill_n(x->data.begin(), row, kNaN);
    std::fill(x->data.begin() + row + row / 2, x->data.end(), kNaN);
  }
  ExpectMatchesReference(c);
  for (size_t i = 0; i < c.o.data.size() / 2; ++i) EXPECT_EQ(c.o.data[i], 0);
  for (size_t i = 0; i < c.norm.data.size() / 2; ++i) EXPECT_EQ(c.norm.data[i], -kInf);
  for (size_t i = 0; i < row; ++i) EXPECT_EQ(c.d_k.data[i], 0);
  for (size_t i = row + row / 2; i < 2 * row; ++i) EXPECT_EQ(c.d_v.data[i], 0);
}

TEST(Softmax, MaskedRowsOfACausalBatch) {
  // Left padding and holes; a row with nothing valid. Masked places hold NaN.
  Case c({.B = 3, .T = 9, .H = 2, .HV = 1});
  std::vector<uint8_t> mask = {0, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0,
                               0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1};
  c.in.segments.mask = MakeArray(mask.data(), {3, 9});
  for (Tensor* x : {&c.q, &c.k, &c.v, &c.d_o}) {
    const size_t n = x->data.size() / mask.size();
    for (size_t t = 0; t < mask.size(); ++t)
      if (!mask[t]) std::fill_n(x->data.begin() + t * n, n, kNaN);
  }
  ExpectMatchesReference(c);
}

TEST(Softmax, LargeLogitsDoNotOverflow) {
  // Scores of +-1e4: the winner takes all, exactly; exp(1e4) would be infinite.
  Case c({.T = 150, .K = 2, .V = 1}, {.causal = false, .scale = 1});
  for (int64_t t = 0; t < 150; ++t) {
    c.q.data[2 * t] = 100, c.q.data[2 * t + 1] = 0;
    c.k.data[2 * t] = t == 77 ? 100 : -100;
  }
  ExpectMatchesReference(c);
  for (float o : c.o.data) EXPECT_EQ(o, c.v.data[77]);
  for (float l : c.norm.data) EXPECT_EQ(l, 1e4f);
}

TEST(Softmax, FirstVisibleKeyMayHaveAHugeNegativeScore) {
  Case c({.T = 80, .K = 1, .V = 1}, {.scale = 1});
  for (float& x : c.q.data) x = 1e4f;
  for (float& x : c.k.data) x = -1e4f;
  c.Forward();
  for (int t = 0; t < 80; ++t) EXPECT_NEAR(c.norm.data[t], -1e8, 16);
  EXPECT_EQ(c.o.data[0], c.v.data[0]);
}

TEST(Softmax, SlicesOfOneFusedArrayEqualCopies) {
  // q, k, v as column slices of [T, 3 H K], the users' case A28.
  Case c({.T = 70, .H = 2, .HV = 2, .K = 8, .V = 8});
  c.Forward();
  const Tensor expected = c.o;
  std::vector<float> fused(70 * 48);
  Array slices[3];
  for (int part = 0; part < 3; ++part) {
    const Tensor& x = part == 0 ? c.q : part == 1 ? c.k : c.v;
    for (int t = 0; t < 70; ++t)
      std::copy_n(x.data.begin() + t * 16, 16, fused.begin() + t * 48 + part * 16);
    slices[part] = MakeArray(fused.data() + part * 16, {1, 70, 2, 8});
    slices[part].stride = {70 * 48, 48, 8, 1};
  }
  c.Clear();
  c.in.q = slices[0], c.in.k = slices[1], c.in.v = slices[2];
  k_softmax.forward(c.in, {.o = c.o.view(), .norm = {}, .ST = {}, .zT = {}}, c.Scratch());
  EXPECT_EQ(c.o.data, expected.data);
}

TEST(Softmax, HalfPrecisionInputsKeepFloat32Sums) {
  // 20,000 keys of equal weight, v = 1: a sum in half precision would stall at 2048 (float16) or
  // 256 (bfloat16).
  const int64_t S = 20000;
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> zero(S, 0),
        one(S, dtype == DType::kBF16 ? ToBF16(1).bits : ToF16(1).bits);
    MixerInputs in;
    in.options = Cross(false);
    in.q = MakeArray(zero.data(), dtype, {1, 1, 1, 1});
    in.k = MakeArray(zero.data(), dtype, {1, S, 1, 1});
    in.v = MakeArray(one.data(), dtype, {1, S, 1, 1});
    std::vector<char> scratch(
        k_softmax.scratch_bytes(CheckInputs(k_softmax, in), Case::kMaxThreads) + 64);
    float o = kNaN, norm = kNaN;
    k_softmax.forward(
        in,
        {.o = MakeArray(&o, {1, 1, 1, 1}), .norm = MakeArray(&norm, {1, 1, 1}), .ST = {}, .zT = {}},
        scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64));
    EXPECT_NEAR(o, 1, 1e-6);
    EXPECT_NEAR(norm, std::log(20000.0), 1e-5);
  }
}

TEST(Softmax, WideHalfRowsEqualTheirFloat32) {
  // Rows longer than any vector, of values that both short types hold exactly.
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    Case c({.T = 70, .H = 2, .HV = 2, .K = 40, .V = 40});
    std::vector<uint16_t> half[3];
    Tensor* const wide[] = {&c.q, &c.k, &c.v};
    for (int part = 0; part < 3; ++part) {
      for (float& x : wide[part]->data) {
        x = std::round(x * 16) / 16;
        half[part].push_back(dtype == DType::kBF16 ? ToBF16(x).bits : ToF16(x).bits);
      }
    }
    c.Forward();
    const Tensor expected = c.o;
    c.Clear();
    Array* const inputs[] = {&c.in.q, &c.in.k, &c.in.v};
    for (int part = 0; part < 3; ++part)
      *inputs[part] = MakeArray(half[part].data(), dtype, {1, 70, 2, 40});
    k_softmax.forward(c.in, {.o = c.o.view(), .norm = {}, .ST = {}, .zT = {}}, c.Scratch());
    EXPECT_EQ(c.o.data, expected.data);
  }
}

TEST(Softmax, QueryWithoutKeysHasNoGradient) {
  // No rule of today leaves a query without keys beside keys that others see, so l is set by hand.
  Case c({.T = 80, .K = 4, .V = 3});
  c.Forward();
  c.norm.data[70] = -kInf;
  c.Backward();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(c.d_q.data[70 * 4 + i], 0);
  for (const Tensor* d : {&c.d_q, &c.d_k, &c.d_v})
    for (float x : d->data) ASSERT_TRUE(std::isfinite(x));
}

TEST(Softmax, AbsentCotangentGivesZeroGradients) {
  Case c({.T = 5});
  c.Forward();
  MixerGradients grad = c.Grads();
  grad.d_o = {};
  k_softmax.backward(c.in, {.o = c.o.view(), .norm = c.norm.view(), .ST = {}, .zT = {}}, grad,
                     c.Scratch());
  for (Tensor* x : {&c.d_q, &c.d_k, &c.d_v}) EXPECT_THAT(x->data, testing::Each(0.f));
}

TEST(Softmax, UnwantedGradientsAreNotComputed) {
  Case c({.T = 70});
  c.Forward();
  c.Backward();
  const Tensor d_q = c.d_q, d_k = c.d_k, d_v = c.d_v;
  for (int wanted = 0; wanted < 3; ++wanted) {
    Case only = c;
    only.in.q = only.q.view(), only.in.k = only.k.view(), only.in.v = only.v.view();
    MixerGradients grad = only.Grads();
    if (wanted != 0) grad.d_q = {};
    if (wanted != 1) grad.d_k = {};
    if (wanted != 2) grad.d_v = {};
    k_softmax.backward(only.in, {.o = only.o.view(), .norm = only.norm.view(), .ST = {}, .zT = {}},
                       grad, only.Scratch());
    EXPECT_EQ(only.d_q.data, d_q.data);
    EXPECT_EQ(only.d_k.data, d_k.data);
    EXPECT_EQ(only.d_v.data, d_v.data);
  }
}

// ---- The cache ----

// Decodes c's B rows, each a sequence, token by token from `first` on.
void StepThrough(Case& c, std::vector<std::vector<float>>& caches, int64_t first,
                 int64_t capacity) {
  const auto [B, T, S, H, HV, K, V] = c.shape;
  std::vector<float> q(B * H * K), k(B * HV * K), v(B * HV * V), o(B * H * V);
  std::vector<float*> state;
  for (auto& cache : caches) state.push_back(cache.data());
  for (int64_t t = first; t < T; ++t) {
    for (int64_t b = 0; b < B; ++b) {
      std::copy_n(c.q.data.begin() + (b * T + t) * H * K, H * K, q.begin() + b * H * K);
      std::copy_n(c.k.data.begin() + (b * T + t) * HV * K, HV * K, k.begin() + b * HV * K);
      std::copy_n(c.v.data.begin() + (b * T + t) * HV * V, HV * V, v.begin() + b * HV * V);
    }
    const std::vector<int64_t> length(B, t);
    k_softmax.step({.q = MakeArray(q.data(), {B, H, K}),
                    .k = MakeArray(k.data(), {B, HV, K}),
                    .v = MakeArray(v.data(), {B, HV, V}),
                    .g = {},
                    .beta = {},
                    .o = MakeArray(o.data(), {B, H, V}),
                    .state = state.data(),
                    .length = length.data(),
                    .capacity = capacity,
                    .options = c.in.options});
    for (int64_t b = 0; b < B; ++b)
      std::copy_n(o.begin() + b * H * V, H * V, c.o.data.begin() + (b * T + t) * H * V);
  }
}

int64_t StateFloats(const Shape& s, int64_t capacity) {
  return k_softmax.state_floats(
      {.B = 1, .T = s.T, .S = s.T, .H = s.H, .HV = s.HV, .K = s.K, .F = s.K, .V = s.V, .N = 1},
      {}, capacity);
}

TEST(Softmax, StateIsKeysThenValues) {
  const Shape s{.T = 1, .H = 4, .HV = 2, .K = 3, .V = 5};
  EXPECT_EQ(StateFloats(s, 10), 2 * 10 * 3 + 2 * 10 * 5);
}

TEST(Softmax, CachedStepEqualsForward) {
  for (int64_t window : {0, 9}) {
    for (const Shape& s : {Shape{.B = 2, .T = 100, .H = 4, .HV = 2, .K = 8, .V = 12},
                           Shape{.B = 1, .T = 300, .H = 3, .HV = 3, .K = 33, .V = 1}}) {
      Case c(s, {.window = window});
      c.Forward();
      const Tensor expected = c.o;
      std::vector<std::vector<float>> caches(s.B, std::vector<float>(StateFloats(s, s.T + 7), 0));
      c.o.data.assign(c.o.data.size(), kNaN);
      StepThrough(c, caches, 0, s.T + 7);
      EXPECT_LT(Error(c.o, expected), 2e-6) << "window " << window;
    }
  }
}

TEST(Softmax, NaNIsNeverHidden) {
  // One NaN key or query, with sound values: whoever sees it must show it (C7: a checkpoint with
  // one NaN weight).
  for (bool key : {true, false}) {
    Case c({.T = 150, .K = 4, .V = 2});
    (key ? c.k : c.q).data[70 * 4] = kNaN;
    c.Forward();
    c.Backward();
    for (int t = 0; t < 150; ++t) {
      const bool sees = key ? t >= 70 : t == 70;
      EXPECT_EQ(std::isnan(c.o.data[2 * t]), sees) << t;
      EXPECT_EQ(std::isnan(c.norm.data[t]), sees) << t;
      EXPECT_TRUE(!sees || std::isnan(c.d_q.data[4 * t])) << t;
    }
    std::vector<std::vector<float>> caches(1, std::vector<float>(150 * 6, 0));
    StepThrough(c, caches, 0, 150);
    for (int t = 0; t < 150; ++t)
      EXPECT_EQ(std::isnan(c.o.data[2 * t]), key ? t >= 70 : t == 70) << t;
  }
}

TEST(Softmax, SequencesOfOneStepMayHaveDifferentLengths) {
  // Sequence 1 joins 20 tokens after sequence 0; each must see its own cache only.
  const Shape s{.B = 1, .T = 30, .H = 2, .HV = 2, .K = 8, .V = 8};
  Case a(s, {}, 1), b(s, {}, 2);
  const int64_t size = StateFloats(s, 32);
  std::vector<float> cache_a(size, 0), cache_b(size, 0);
  for (Case* c : {&a, &b}) c->Forward();
  for (int64_t t = 0; t < 10; ++t) {
    std::vector<float> q(32), k(32), v(32), o(32, kNaN);
    const int64_t length[] = {20 + t, t};
    if (t == 0) {
      for (int64_t i = 0; i < 20; ++i) {
        for (int64_t h = 0; h < 2; ++h) {
          std::copy_n(a.k.data.begin() + i * 16 + h * 8, 8, cache_a.begin() + (h * 32 + i) * 8);
          std::copy_n(a.v.data.begin() + i * 16 + h * 8, 8,
                      cache_a.begin() + 2 * 32 * 8 + (h * 32 + i) * 8);
        }
      }
    }
    for (auto [from, to] : {std::pair{&a.q, &q}, {&a.k, &k}, {&a.v, &v}})
      std::copy_n(from->data.begin() + length[0] * 16, 16, to->begin());
    for (auto [from, to] : {std::pair{&b.q, &q}, {&b.k, &k}, {&b.v, &v}})
      std::copy_n(from->data.begin() + length[1] * 16, 16, to->begin() + 16);
    float* const state[] = {cache_a.data(), cache_b.data()};
    k_softmax.step({.q = MakeArray(q.data(), {2, 2, 8}),
                    .k = MakeArray(k.data(), {2, 2, 8}),
                    .v = MakeArray(v.data(), {2, 2, 8}),
                    .g = {},
                    .beta = {},
                    .o = MakeArray(o.data(), {2, 2, 8}),
                    .state = state,
                    .length = length,
                    .capacity = 32,
                    .options = {}});
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_NEAR(o[i], a.o.data[length[0] * 16 + i], 2e-6);
      EXPECT_NEAR(o[16 + i], b.o.data[length[1] * 16 + i], 2e-6);
    }
  }
}

// Rows [t0, t1) of a [1,T,*,*] array.
Array Rows(Array a, int64_t t0, int64_t t1) {
  a.data = static_cast<char*>(a.data) + t0 * a.stride[1] * SizeOf(a.dtype);
  a.shape[1] = t1 - t0;
  return a;
}

TEST(Softmax, PrefillInPiecesEqualsOneRun) {
  // The users' case A7 for a cache: 10 tokens as 10; 3+4+3; 1x10; 9+1, and a long prompt over
  // several blocks.
  const std::vector<std::vector<int64_t>> splits = {
      {10}, {3, 4, 3}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {9, 1}, {300, 1, 77, 129}};
  for (int64_t window : {0, 5}) {
    for (const auto& split : splits) {
      int64_t T = 0;
      for (int64_t n : split) T += n;
      const Shape s{.B = 1, .T = T, .H = 4, .HV = 2, .K = 8, .V = 6};
      Case c(s, {.window = window});
      c.Forward();
      const Tensor expected = c.o;
      c.o.data.assign(c.o.data.size(), kNaN);
      std::vector<float> cache(StateFloats(s, T), 0);
      int64_t length = 0;
      for (int64_t n : split) {
        MixerInputs piece = c.in;
        piece.q = Rows(c.in.q, length, length + n);
        piece.k = Rows(c.in.k, length, length + n);
        piece.v = Rows(c.in.v, length, length + n);
        k_softmax.prefill(piece, Rows(c.o.view(), length, length + n), cache.data(), length, T);
        length += n;
      }
      EXPECT_LT(Error(c.o, expected), 2e-6) << split.size() << " pieces, window " << window;
    }
  }
}

TEST(Softmax, UncachedRecomputeEqualsCached) {
  // The paper's baseline: forward over the whole prefix for each token, against prefill + steps.
  const Shape s{.B = 1, .T = 40, .H = 2, .HV = 2, .K = 8, .V = 8};
  Case cached(s);
  cached.Forward();
  std::vector<std::vector<float>> caches(1, std::vector<float>(StateFloats(s, 40), 0));
  MixerInputs prompt = cached.in;
  for (Array* a : {&prompt.q, &prompt.k, &prompt.v}) *a = Rows(*a, 0, 25);
  cached.o.data.assign(cached.o.data.size(), kNaN);
  k_softmax.prefill(prompt, Rows(cached.o.view(), 0, 25), caches[0].data(), 0, 40);
  StepThrough(cached, caches, 25, 40);
  for (int64_t t = 25; t < 40; ++t) {
    Case prefix({.B = 1, .T = t + 1, .H = 2, .HV = 2, .K = 8, .V = 8});
    for (auto [to, from] :
         {std::pair{&prefix.q, &cached.q}, {&prefix.k, &cached.k}, {&prefix.v, &cached.v}})
      std::copy_n(from->data.begin(), to->data.size(), to->data.begin());
    prefix.Forward();
    for (int64_t i = 0; i < 16; ++i)
      EXPECT_NEAR(prefix.o.data[t * 16 + i], cached.o.data[t * 16 + i], 2e-6);
  }
}

TEST(Softmax, FullCacheIsRefusedWithBothNumbers) {
  // The users' case B24: token 784 of 784 works, token 785 does not.
  const Shape s{.B = 1, .T = 1};
  Case c(s);
  std::vector<float> cache(StateFloats(s, 784), 0), o(4);
  float* const state[] = {cache.data()};
  auto step_at = [&](int64_t length) {
    k_softmax.step({.q = MakeArray(c.q.data.data(), {1, 1, 4}),
                    .k = MakeArray(c.k.data.data(), {1, 1, 4}),
                    .v = MakeArray(c.v.data.data(), {1, 1, 4}),
                    .g = {},
                    .beta = {},
                    .o = MakeArray(o.data(), {1, 1, 4}),
                    .state = state,
                    .length = &length,
                    .capacity = 784,
                    .options = {}});
  };
  EXPECT_NO_THROW(step_at(783));
  const auto both = testing::ThrowsMessage<linattn::Error>(
      testing::AllOf(testing::HasSubstr("785"), testing::HasSubstr("784")));
  EXPECT_THAT([&] { step_at(784); }, both);
  c.in.q = c.q.view(), c.in.k = c.k.view(), c.in.v = c.v.view();
  EXPECT_NO_THROW(k_softmax.prefill(c.in, c.o.view(), cache.data(), 783, 784));
  EXPECT_THAT([&] { k_softmax.prefill(c.in, c.o.view(), cache.data(), 784, 784); }, both);
}

}  // namespace
}  // namespace linattn
