#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/parameters.h"
#include "runtime/packed_model.h"
#include "runtime/reference_attention.h"

// For tests: the model by its definition (model/config.h), in float64 and plain loops, with nothing
// of the runtime in it, and small random models.
namespace linattn::reference {

// Every tensor normal with deviation `scale`, so that biases and norms matter too.
inline PackedModel::Tensors DenseTensors(const ModelConfig& config, uint64_t seed,
                                         double scale = 0.3) {
  PackedModel::Tensors tensors;
  uint64_t stream = 0;
  for (const ParameterSpec& spec : Parameters(config)) {
    Random random(seed, stream++);
    const double deviation = spec.trained ? scale : 1;  // random features are standard normal
    for (int64_t i = 0; i < ElementsOf(spec); ++i) {
      tensors[spec.name].push_back(static_cast<float>(deviation * random.Normal()));
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
        x = Sum(x, Attention(c_, tensors_, i).Forward(Norm(x, at + "attn_norm")));
        x = Sum(x, Mlp(Norm(x, at + "mlp_norm"), i));
      } else {
        x = Norm(Sum(x, Attention(c_, tensors_, i).Forward(x)), at + "attn_norm");
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

  // LayerNorm, or RMSNorm in modern blocks.
  Matrix Norm(Matrix x, const std::string& name) const {
    const double n = static_cast<double>(c_.dim);
    const bool centred = c_.block == "classic";
    for (Vector& row : x) {
      double mean = 0, variance = 0;
      if (centred)
        for (const double v : row) mean += v / n;
      for (const double v : row) variance += (v - mean) * (v - mean) / n;
      for (int64_t j = 0; j < c_.dim; ++j) {
        row[j] = (row[j] - mean) / std::sqrt(variance + c_.norm_eps) * T(name + ".weight")[j];
        if (centred) row[j] += T(name + ".bias")[j];
      }
    }
    return x;
  }

  Matrix Project(const Matrix& x, const std::string& weight, const std::string& bias) const {
    const std::vector<float>& w = T(weight);
    Matrix y;
    for (const Vector& row : x) {
      Vector out(w.size() / row.size(), 0.0);
      if (const auto b = tensors_.find(bias); b != tensors_.end())
        out.assign(b->second.begin(), b->second.end());
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
    if (c_.block == "modern") {
      const Matrix gate = Project(x, at + "gate_proj");
      for (size_t t = 0; t < up.size(); ++t)
        for (size_t i = 0; i < up[t].size(); ++i) up[t][i] *= gate[t][i] * Sigmoid(gate[t][i]);
      return Project(up, at + "down_proj");
    }
    for (Vector& row : up) {
      for (double& v : row) {
        v = c_.activation == "relu" ? std::max(v, 0.0) : v * 0.5 * std::erfc(-v / std::sqrt(2.0));
      }
    }
    return Project(up, at + "down_proj");
  }

  ModelConfig c_;
  PackedModel::Tensors tensors_;
};

}  // namespace linattn::reference
