#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/layer.h"
#include "runtime/packed_model.h"

// For tests: one layer's attention by its definition (model/layer.h), in float64 and plain loops.
// Only the mixer itself is that of the kernels, in its reference form.
namespace linattn::reference {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;  // [T][channels]

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double Softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

class Attention {
 public:
  Attention(const ModelConfig& config, const PackedModel::Tensors& tensors, int64_t layer)
      : c_(config),
        tensors_(tensors),
        layer_(layer),
        p_(PlanLayer(config, layer)),
        at_("layers." + std::to_string(layer) + ".attn.") {}

  Matrix Forward(const Matrix& x) const {
    Matrix q = Project(x, "q_proj"), v = Project(x, "v_proj"), k;
    if (p_.key_channels() > 0) k = Project(x, "k_proj");
    if (p_.conv_size > 0) q = Convolved(q, "q"), v = Convolved(v, "v");
    if (p_.conv_size > 0 && p_.key_channels() > 0) k = Convolved(k, "k");
    if (p_.map_dim > 0) q = Mapped(q, "feature_map_q"), k = Mapped(k, "feature_map_k");
    if (p_.rope_theta > 0) q = Rotated(q), k = Rotated(k);
    if (p_.key_channels() == 0) k = q;
    return Project(Gated(Mixed(q, k, v, LogDecay(x), Beta(x)), x), "o_proj");
  }

 private:
  bool Has(const std::string& name) const { return tensors_.count(at_ + name) > 0; }
  const std::vector<float>& T(const std::string& name) const { return tensors_.at(at_ + name); }

  Matrix Project(const Matrix& x, const std::string& name) const {
    if (!Has(name + ".weight")) return Project(Project(x, name + ".0"), name + ".1");  // low rank
    const std::vector<float>& w = T(name + ".weight");
    const size_t in = x[0].size(), out = w.size() / in;
    Matrix y(x.size(), Vector(out, 0.0));
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t o = 0; o < out; ++o) {
        if (Has(name + ".bias")) y[t][o] = T(name + ".bias")[o];
        for (size_t j = 0; j < in; ++j) y[t][o] += double{w[o * in + j]} * x[t][j];
      }
    }
    return y;
  }

  Matrix Convolved(const Matrix& x, const std::string& which) const {
    const std::vector<float>& w = T(which + "_conv1d.weight");
    const int64_t W = p_.conv_size, length = static_cast<int64_t>(x.size());
    Matrix y = x;
    for (int64_t t = 0; t < length; ++t) {
      for (size_t i = 0; i < x[t].size(); ++i) {
        double sum = 0;
        for (int64_t j = 0; j < W; ++j)
          if (t - W + 1 + j >= 0) sum += w[i * W + j] * x[t - W + 1 + j][i];
        y[t][i] = sum * Sigmoid(sum);
      }
    }
    return y;
  }

  // A projection of every head by itself.
  Matrix Mapped(const Matrix& x, const std::string& name) const {
    const size_t K = p_.head_dim;
    Matrix y(x.size());
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t h = 0; h < x[t].size(); h += K) {
        const Matrix head = Project({Vector(x[t].begin() + h, x[t].begin() + h + K)}, name);
        y[t].insert(y[t].end(), head[0].begin(), head[0].end());
      }
    }
    return y;
  }

  Matrix Rotated(Matrix x) const {
    const size_t K = p_.head_dim, half = K / 2;
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t h = 0; h < x[t].size(); h += K) {
        for (size_t i = 0; i < half; ++i) {
          const double angle = t * std::pow(p_.rope_theta, -2.0 * i / K);
          const double a = x[t][h + i], b = x[t][h + half + i];
          x[t][h + i] = a * std::cos(angle) - b * std::sin(angle);
          x[t][h + half + i] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    return x;
  }

  // [T][decay channels], or nothing.
  Matrix LogDecay(const Matrix& x) const {
    const DecayGate gate = p_.decay_gate;
    if (gate == DecayGate::kNone) return {};
    if (gate == DecayGate::kFixed) {
      const std::vector<float> g = FixedDecayOf(c_, layer_);
      return Matrix(x.size(), Vector(g.begin(), g.end()));
    }
    const bool softplus = gate == DecayGate::kSoftplus;
    const char* name = !softplus ? "gk_proj" : p_.decay_rank > 0 ? "f_proj" : "a_proj";
    Matrix g = Project(x, name);
    for (Vector& row : g) {
      for (size_t i = 0; i < row.size(); ++i) {
        if (softplus) {
          const size_t head = i * p_.value_heads / row.size();
          row[i] = -std::exp(double{T("A_log")[head]}) * Softplus(row[i] + T("dt_bias")[i]);
        } else {
          row[i] = -Softplus(-row[i]) / c_.gate_divisor;
        }
      }
    }
    return g;
  }

  Matrix Beta(const Matrix& x) const {
    if (!p_.beta()) return {};
    Matrix beta = Project(x, "b_proj");
    for (Vector& row : beta)
      for (double& b : row) b = Sigmoid(b) * (c_.negative_eigenvalues ? 2 : 1);
    return beta;
  }

  static Vector Flat(const Matrix& x) {
    Vector flat;
    for (const Vector& row : x) flat.insert(flat.end(), row.begin(), row.end());
    return flat;
  }

  Matrix Mixed(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& g,
               const Matrix& beta) const {
    const int64_t T = static_cast<int64_t>(q.size()), V = p_.value_dim;
    const Vector flat_q = Flat(q), flat_k = Flat(k), flat_v = Flat(v), flat_g = Flat(g),
                 flat_beta = Flat(beta);
    Vector flat_o(T * p_.output_channels()), norm(T * p_.output_heads());
    MixerInputs in;
    in.q = MakeArray(flat_q.data(), {1, T, p_.heads, p_.mixed_dim()});
    in.k = MakeArray(flat_k.data(), {1, T, p_.key_heads(), p_.mixed_dim()});
    in.v = MakeArray(flat_v.data(), {1, T, p_.value_heads, V});
    if (!g.empty() && p_.decay_channels() == p_.value_heads)
      in.g = MakeArray(flat_g.data(), {1, T, p_.value_heads});
    else if (!g.empty())
      in.g = MakeArray(flat_g.data(), {1, T, p_.value_heads, p_.head_dim});
    if (!beta.empty()) in.beta = MakeArray(flat_beta.data(), {1, T, p_.value_heads});
    in.options = OptionsOf(c_, layer_);
    std::unique_ptr<RandomFeatures> features;
    if (p_.features > 0) {
      features = std::make_unique<RandomFeatures>(this->T("features"), p_.head_dim);
      features->UseIn(in.options);
    }
    MixerOutputs out;
    out.o = MakeArray(flat_o.data(), {1, T, p_.output_heads(), V});
    out.norm = MakeArray(norm.data(), {1, T, p_.output_heads()});
    p_.mixer->forward_ref(in, out);
    Matrix o(T);
    const int64_t width = p_.output_channels();
    for (int64_t t = 0; t < T; ++t)
      o[t].assign(flat_o.begin() + t * width, flat_o.begin() + (t + 1) * width);
    return o;
  }

  Matrix Gated(Matrix o, const Matrix& x) const {
    const size_t V = p_.value_dim;
    if (p_.output_norm) {
      for (Vector& row : o) {
        for (size_t h = 0; h < row.size(); h += V) {
          double squares = 0;
          for (size_t i = h; i < h + V; ++i) squares += row[i] * row[i] / static_cast<double>(V);
          for (size_t i = h; i < h + V; ++i)
            row[i] *= T("o_norm.weight")[i - h] / std::sqrt(squares + c_.norm_eps);
        }
      }
    }
    if (p_.output_gate == OutputGate::kNone) return o;
    const Matrix gate = Project(x, "g_proj");
    for (size_t t = 0; t < o.size(); ++t) {
      for (size_t i = 0; i < o[t].size(); ++i) {
        const double s = Sigmoid(gate[t][i]);
        o[t][i] *= p_.output_gate == OutputGate::kSwish ? gate[t][i] * s : s;
      }
    }
    return o;
  }

  const ModelConfig& c_;
  const PackedModel::Tensors& tensors_;
  int64_t layer_;
  LayerPlan p_;
  std::string at_;
};

}  // namespace linattn::reference
