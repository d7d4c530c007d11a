#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/parameters.h"
#include "runtime/packed_model.h"

// For tests: the model by its definition (model/config.h), in float64 and plain loops, with nothing
// of the runtime in it, and small random models.
namespace linattn::reference {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;  // [T][channels]

// Every tensor normal with deviation `scale`, so that biases and norms matter too.
inline PackedModel::Tensors DenseTensors(const ModelConfig& config, uint64_t seed,
                                         double scale = 0.3) {
  PackedModel::Tensors tensors;
  uint64_t stream = 0;
  for (const ParameterSpec& spec : Parameters(config)) {
    Random random(seed, stream++);
    int64_t size = 1;
    for (const int64_t extent : spec.shape) size *= extent;
    for (int64_t i = 0; i < size; ++i) {
      tensors[spec.name].push_back(static_cast<float>(scale * random.Normal()));
    }
  }
  return tensors;
}

class Model {
 public:
  Model(const ModelConfig& config, const PackedModel::Tensors& tensors)
      : c_(config), tensors_(tensors) {}

  // Outputs at every position of one sequence of tokens.
  Matrix Forward(const std::vector<int32_t>& tokens) const {
    Matrix x = Embed(tokens);
    for (int64_t i = 0; i < c_.layers(); ++i) {
      const std::string at = "layers." + std::to_string(i) + ".";
      if (c_.pre_norm) {
        x = Sum(x, Attention(Norm(x, at + "attn_norm"), i));
        x = Sum(x, Mlp(Norm(x, at + "mlp_norm"), i));
      } else {
        x = Norm(Sum(x, Attention(x, i)), at + "attn_norm");
        x = Norm(Sum(x, Mlp(x, i)), at + "mlp_norm");
      }
    }
    return Project(Norm(x, "norm"), c_.tied ? "embed.weight" : "head.weight", "head.bias");
  }

 private:
  const std::vector<float>& T(const std::string& name) const { return tensors_.at(name); }

  Matrix Embed(const std::vector<int32_t>& tokens) const {
    Matrix x;
    for (size_t t = 0; t < tokens.size(); ++t) {
      Vector row(c_.dim);
      for (int64_t j = 0; j < c_.dim; ++j) {
        row[j] = T("embed.weight")[tokens[t] * c_.dim + j];
        const int64_t p = static_cast<int64_t>(t);
        if (c_.position == "learned") row[j] += T("position.weight")[p * c_.dim + j];
        if (c_.position != "image") continue;
        const int64_t wc = c_.width * c_.channels;
        row[j] += T("position.row.weight")[p / wc * c_.dim + j];
        row[j] += T("position.column.weight")[p % wc / c_.channels * c_.dim + j];
        row[j] += T("position.channel.weight")[p % c_.channels * c_.dim + j];
      }
      x.push_back(row);
    }
    return x;
  }

  static Matrix Sum(Matrix a, const Matrix& b) {
    for (size_t t = 0; t < a.size(); ++t) {
      for (size_t j = 0; j < a[t].size(); ++j) a[t][j] += b[t][j];
    }
    return a;
  }

  Matrix Norm(Matrix x, const std::string& name) const {
    const double n = static_cast<double>(c_.dim);
    for (Vector& row : x) {
      double mean = 0, variance = 0;
      for (const double v : row) mean += v / n;
      for (const double v : row) variance += (v - mean) * (v - mean) / n;
      for (int64_t j = 0; j < c_.dim; ++j) {
        row[j] = (row[j] - mean) / std::sqrt(variance + c_.norm_eps) * T(name + ".weight")[j] +
                 T(name + ".bias")[j];
      }
    }
    return x;
  }

  Matrix Project(const Matrix& x, const std::string& weight, const std::string& bias) const {
    const std::vector<float>&w = T(weight), &b = T(bias);
    Matrix y;
    for (const Vector& row : x) {
      Vector out(b.begin(), b.end());
      for (size_t o = 0; o < out.size(); ++o) {
        for (size_t j = 0; j < row.size(); ++j) out[o] += w[o * row.size() + j] * row[j];
      }
      y.push_back(out);
    }
    return y;
  }
  Matrix Project(const Matrix& x, const std::string& name) const {
    return Project(x, name + ".weight", name + ".bias");
  }

  Matrix Mlp(const Matrix& x, int64_t layer) const {
    const std::string at = "layers." + std::to_string(layer) + ".mlp.";
    Matrix up = Project(x, at + "up_proj");
    for (Vector& row : up) {
      for (double& v : row) {
        v = c_.activation == "relu" ? std::max(v, 0.0) : v * 0.5 * std::erfc(-v / std::sqrt(2.0));
      }
    }
    return Project(up, at + "down_proj");
  }

  static double Phi(double x) { return x > 0 ? x + 1 : std::exp(x); }

  // exp(q.k / sqrt K) for softmax; phi(q).phi(k) for linear: both are weights that are divided by
  // their sum.
  double Weight(const Vector& q, const Vector& k, int64_t head, bool linear) const {
    double dot = 0;
    for (int64_t i = head * c_.head_dim; i < (head + 1) * c_.head_dim; ++i) {
      dot += linear ? Phi(q[i]) * Phi(k[i]) : q[i] * k[i];
    }
    return linear ? dot : std::exp(dot / std::sqrt(static_cast<double>(c_.head_dim)));
  }

  Matrix Attention(const Matrix& x, int64_t layer) const {
    const std::string at = "layers." + std::to_string(layer) + ".attn.";
    const Matrix q = Project(x, at + "q_proj"), k = Project(x, at + "k_proj"),
                 v = Project(x, at + "v_proj");
    const bool linear = c_.mixers[layer] == "linear";
    const int64_t T = static_cast<int64_t>(x.size()), V = c_.value_dim;
    Matrix o(T, Vector(c_.value_heads * V));
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t h = 0; h < c_.value_heads; ++h) {
        double sum = linear ? c_.attn_eps : 0;
        for (int64_t s = 0; s < (c_.causal ? t + 1 : T); ++s) {
          const double w = Weight(q[t], k[s], h / (c_.value_heads / c_.heads), linear);
          sum += w;
          for (int64_t j = 0; j < V; ++j) o[t][h * V + j] += w * v[s][h * V + j];
        }
        for (int64_t j = 0; j < V; ++j) o[t][h * V + j] /= sum;
      }
    }
    return Project(o, at + "o_proj");
  }

  ModelConfig c_;
  PackedModel::Tensors tensors_;
};

}  // namespace linattn::reference
