// golden_check DIR...: runs every golden file of the directories through the float64 references and
// the fast float32 functions, prints a line a file, and exits with 1 if any fails (2: cannot run).
// A golden file is one case in float64: inputs, cotangents, outputs and gradients of a published
// recurrence (testdata/golden).

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/safetensors.h"
#include "kernels/favor_map.h"
#include "kernels/feature_map.h"
#include "kernels/logistic_mixture.h"
#include "kernels/mixer.h"

namespace linattn {
namespace {

// ---- What a file holds ----

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<double> values;
};

struct Golden {
  std::string path;
  std::map<std::string, std::string> metadata;
  std::map<std::string, Tensor> tensors;

  bool Has(const std::string& name) const { return tensors.count(name) > 0; }
  const Tensor& Get(const std::string& name) const {
    const auto found = tensors.find(name);
    Check(found != tensors.end(), "golden", "{}: '{}' is missing", path, name);
    return found->second;
  }
  double Number(const std::string& key, double otherwise) const {
    const auto found = metadata.find(key);
    return found == metadata.end() ? otherwise : std::stod(found->second);
  }
};

Golden ReadGolden(const std::string& path) {
  const auto file = SafetensorsFile::Open(path, "golden");
  Golden golden{path, file.metadata(), {}};
  for (const auto& [name, tensor] : file.tensors())
    golden.tensors[name] = {tensor.shape, file.Doubles(name)};
  return golden;
}

// Nested lists of numbers, all of one shape.
void Flatten(const nlohmann::json& json, size_t depth, Tensor& tensor) {
  if (json.is_number()) return tensor.values.push_back(json.get<double>());
  if (tensor.shape.size() == depth) tensor.shape.push_back(static_cast<int64_t>(json.size()));
  Check(std::cmp_equal(json.size(), tensor.shape[depth]), "golden", "lists must have one length");
  for (const auto& item : json) Flatten(item, depth + 1, tensor);
}

// ---- The verdict ----

// README of the golden files: e_max = max|x - ref| / max|ref|.
struct Tolerances {
  double forward, gradient;
};
constexpr Tolerances kF64{1e-10, 1e-10};
constexpr Tolerances kF32Chunked{5e-6, 2e-5};
constexpr Tolerances kF32Mixture{2e-6, 3e-5};

// The comparison that came closest to its tolerance, or passed it by most.
struct Worst {
  double error = 0, tolerance = 1;
  std::string what = "nothing compared";
  int compared = 0;

  double ratio() const { return compared == 0 ? 2 : error / tolerance; }

  template <class R>
  void Compare(const std::string& name, std::span<const R> x, const std::vector<double>& reference,
               double limit) {
    Check(x.size() == reference.size(), "golden", "'{}' must have {} numbers, but has {}", name,
          x.size(), reference.size());
    double difference = 0, size = 0;
    for (size_t i = 0; i < reference.size(); ++i) {
      const double d = std::abs(static_cast<double>(x[i]) - reference[i]);
      difference =
          std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(difference, d);
      size = std::max(size, std::abs(reference[i]));
    }
    const double e = size > 0 ? difference / size : difference;
    if (compared++ == 0 || e / limit > error / tolerance) {
      error = e;
      tolerance = limit;
      what = fmt::format("{} {}", sizeof(R) == 8 ? "float64" : "float32", name);
    }
  }
};

// ---- Mixers: the fields of the contract by their golden names ----

struct Scratch {
  explicit Scratch(int64_t bytes)
      : block(std::aligned_alloc(64, static_cast<size_t>(bytes + 64) / 64 * 64), &std::free) {}
  std::unique_ptr<void, void (*)(void*)> block;
};

template <class R>
class MixerRun {
 public:
  MixerRun(const Mixer& mixer, const Golden& golden, const MixerOptions& options)
      : mixer_(mixer), golden_(golden) {
    in_.options = options;
    in_.q = Input("q");
    in_.k = Input("k");
    in_.v = Input("v");
    in_.g = Input("g");
    in_.beta = Input("beta");
    in_.S0 = Input("h0");
    in_.z0 = Input("z0");
    if (golden.Has("log_gamma")) in_.g = SameForAllTokens(Input("log_gamma"), in_.q);
    if (golden.Has("lengths")) {
      for (const double n : golden.Get("lengths").values)
        lengths_.push_back(static_cast<int64_t>(n));
      in_.segments.lengths = MakeArray(lengths_.data(), {static_cast<int64_t>(lengths_.size())});
    }
  }

  void Compare(const Tolerances& tolerances, Worst& worst) {
    Forward();
    Compare({"o", "lse", "ht", "zt"}, tolerances.forward, worst);
    if (!golden_.Has("do")) return;
    Backward();
    Compare({"dq", "dk", "dv", "dg", "dbeta", "dh0", "dz0"}, tolerances.gradient, worst);
  }

  // Token by token, as decoding does it.
  void CompareSteps(double tolerance, Worst& worst) {
    const MixerDims dims = CheckInputs(mixer_, in_);
    const auto floats = static_cast<size_t>(mixer_.state_floats(dims, in_.options, dims.T));
    std::vector<float> states(static_cast<size_t>(dims.N) * floats);
    std::vector<float*> blocks;
    for (int64_t n = 0; n < dims.N; ++n)
      blocks.push_back(states.data() + static_cast<size_t>(n) * floats);
    const int64_t kv = dims.HV * dims.F * dims.V, z = dims.HV * dims.F;  // of a state block
    for (int64_t n = 0; n < dims.N; ++n) {
      if (in_.S0.present()) std::copy_n(in_.S0.template At<float>(n), kv, blocks[n]);
      if (in_.z0.present()) std::copy_n(in_.z0.template At<float>(n), z, blocks[n] + kv);
    }
    const int64_t heads = mixer_.family == Family::kCache ? dims.H : dims.HV;
    const Array o = Output("o", {dims.N, dims.T, heads, dims.V});
    for (int64_t t = 0; t < dims.T; ++t) {
      const std::vector<int64_t> lengths(static_cast<size_t>(dims.N), t);
      mixer_.step({.q = Token(in_.q, t),
                   .k = Token(in_.k, t),
                   .v = Token(in_.v, t),
                   .g = Token(in_.g, t),
                   .beta = Token(in_.beta, t),
                   .o = Token(o, t),
                   .state = blocks.data(),
                   .length = lengths.data(),
                   .capacity = dims.T,
                   .options = in_.options,
                   .share = {}});
    }
    Compare({"o"}, tolerance, worst, "step ");
    if (mixer_.family == Family::kCache) return;
    for (const auto& [name, begin, size] : {std::tuple{"ht", int64_t{0}, kv}, {"zt", kv, z}}) {
      if (!golden_.Has(name)) continue;
      std::vector<float> joined;
      for (const float* block : blocks)
        joined.insert(joined.end(), block + begin, block + begin + size);
      worst.Compare<float>(std::string("step ") + name, joined, golden_.Get(name).values,
                           tolerance);
    }
  }

 private:
  static constexpr bool kReference = sizeof(R) == 8;

  void Forward() {
    const MixerDims dims = CheckInputs(mixer_, in_);
    const auto& q = golden_.Get("q").shape;
    const int64_t heads = mixer_.family == Family::kCache ? dims.H : dims.HV;
    out_.o = Output("o", {q[0], q[1], heads, dims.V});
    out_.norm =
        Output("lse", {q[0], q[1], heads});  // backward reads it, whether the file has it or not
    out_.ST = Wanted("ht");
    out_.zT = Wanted("zt");
    const Scratch scratch(kReference ? 0 : mixer_.scratch_bytes(dims, omp_get_max_threads()));
    if (kReference)
      mixer_.forward_ref(in_, out_);
    else
      mixer_.forward(in_, out_, scratch.block.get());
  }

  void Backward() {
    MixerGradients grad;
    grad.d_o = Input("do");
    grad.d_ST = Input("dht");
    grad.d_zT = Input("dzt");
    grad.d_q = Wanted("dq");
    grad.d_k = Wanted("dk");
    grad.d_v = Wanted("dv");
    grad.d_g = Wanted("dg");
    grad.d_beta = Wanted("dbeta");
    grad.d_S0 = Wanted("dh0");
    grad.d_z0 = Wanted("dz0");
    const MixerDims dims = CheckInputs(mixer_, in_);
    CheckGradients(mixer_, in_, grad);
    const Scratch scratch(kReference ? 0 : mixer_.scratch_bytes(dims, omp_get_max_threads()));
    if (kReference)
      mixer_.backward_ref(in_, out_, grad);
    else
      mixer_.backward(in_, out_, grad, scratch.block.get());
  }

  void Compare(std::initializer_list<const char*> names, double tolerance, Worst& worst,
               const std::string& prefix = "") {
    for (const char* name : names)
      if (golden_.Has(name))
        worst.Compare<R>(prefix + name, buffers_.at(name), golden_.Get(name).values, tolerance);
  }

  // [H] as [B,T,H]: a decay that does not depend on the token.
  static Array SameForAllTokens(const Array& heads, const Array& q) {
    Array g = heads;
    g.rank = 3;
    g.shape = {q.shape[0], q.shape[1], heads.shape[0], 0};
    g.stride = {0, 0, 1, 0};
    return g;
  }

  // Row t of [B,T,...] as [B,...]: strided.
  static Array Token(const Array& a, int64_t t) {
    if (!a.present()) return {};
    Array row = a;
    row.data = a.template At<R>(0, t);
    row.rank = a.rank - 1;
    for (int i = 1; i < row.rank; ++i) {
      row.shape[i] = a.shape[i + 1];
      row.stride[i] = a.stride[i + 1];
    }
    return row;
  }

  Array View(const std::string& name, const std::vector<int64_t>& shape) {
    Check(shape.size() <= 4, "golden", "{}: '{}' has more than 4 axes", golden_.path, name);
    Array array = MakeArray(buffers_.at(name).data(), {0});
    array.rank = static_cast<int>(shape.size());
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
      array.shape[i] = shape[i];
      array.stride[i] = stride;
    }
    return array;
  }

  // Absent if the file has no such tensor.
  Array Input(const std::string& name) {
    if (!golden_.Has(name)) return {};
    const Tensor& tensor = golden_.Get(name);
    buffers_[name].assign(tensor.values.begin(), tensor.values.end());
    return View(name, tensor.shape);
  }
  Array Wanted(const std::string& name) {
    return golden_.Has(name) ? Output(name, golden_.Get(name).shape) : Array{};
  }
  // Filled with NaN, so that what is not written is seen.
  Array Output(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t size = 1;
    for (const int64_t n : shape) size *= n;
    buffers_[name].assign(static_cast<size_t>(size), std::numeric_limits<R>::quiet_NaN());
    return View(name, shape);
  }

  const Mixer& mixer_;
  const Golden& golden_;
  std::map<std::string, std::vector<R>> buffers_;
  std::vector<int64_t> lengths_;
  MixerInputs in_;
  MixerOutputs out_;
};

void CheckMixer(const Mixer& mixer, const Golden& golden, const MixerOptions& options,
                Worst& worst) {
  MixerRun<double>(mixer, golden, options).Compare(kF64, worst);
  MixerRun<float>(mixer, golden, options).Compare(kF32Chunked, worst);
  if (options.causal && !golden.Has("lengths"))
    MixerRun<float>(mixer, golden, options).CompareSteps(kF32Chunked.forward, worst);
}

// Row b and head h of a tensor [B,T,H,C], as [1,T,1,C].
Tensor OneHead(const Tensor& all, int64_t b, int64_t h) {
  const int64_t T = all.shape.at(1), H = all.shape.at(2), C = all.shape.at(3);
  Tensor head{{1, T, 1, C}, {}};
  for (int64_t t = 0; t < T; ++t) {
    const auto row = all.values.begin() + ((b * T + t) * H + h) * C;
    head.values.insert(head.values.end(), row, row + C);
  }
  return head;
}

// The published keys' shift belongs to one row and head, so each of them is a case of its own.
void CheckPerformer(const Golden& golden, MixerOptions options, Worst& worst) {
  const auto& shape = golden.Get("q").shape;
  const Tensor& proj = golden.Get("proj");
  const std::vector<float> projection(proj.values.begin(), proj.values.end());
  const int64_t M = proj.shape.at(0), K = proj.shape.at(1);
  options.scale = 1;  // it is in the features
  options.eps = 0;
  for (int64_t b = 0; b < shape.at(0); ++b) {
    for (int64_t h = 0; h < shape.at(2); ++h) {
      Golden head{golden.path, golden.metadata, {}};
      for (const auto& [name, tensor] : golden.tensors)
        if (name != "proj") head.tensors[name] = OneHead(tensor, b, h);
      const Tensor& k = head.Get("k");
      const double shift = FavorShift(k.values.data(), k.shape[1], projection, K);
      const auto query = FavorMap::Published(FavorRole::kQuery, projection, K);
      const auto key = FavorMap::Published(FavorRole::kKey, projection, K, shift);
      options.feature_map = &query;
      options.key_map = &key;
      if (const double eps = golden.Number("eps_den", 0); eps > 0)
        head.tensors["z0"] = {{1, 1, M}, std::vector<double>(static_cast<size_t>(M), eps)};
      CheckMixer(MixerByName("performer"), head, options, worst);
    }
  }
}

// ---- The logistic mixture ----

template <class R>
void CheckMixtureIn(const Golden& golden, int64_t channels, const Tolerances& tolerances,
                    Worst& worst) {
  const auto& parameters = golden.Get("params");
  const auto& cotangent = golden.Get("dloglik").values;
  const int64_t width = parameters.shape.back();
  const auto positions = static_cast<int64_t>(cotangent.size());
  std::vector<R> params(parameters.values.begin(), parameters.values.end());
  std::vector<R> d_loglik(cotangent.begin(), cotangent.end());
  std::vector<uint8_t> pixels;
  for (const double pixel : golden.Get("pixels").values)
    pixels.push_back(static_cast<uint8_t>(pixel));
  std::vector<R> loglik(d_loglik.size(), NAN), d_params(params.size(), NAN);
  const Array p = MakeArray(params.data(), {positions, width});
  const Array x = MakeArray(pixels.data(), {positions, channels});
  const Array l = MakeArray(loglik.data(), {positions});
  const Array d_l = MakeArray(d_loglik.data(), {positions});
  const Array d_p = MakeArray(d_params.data(), {positions, width});
  if constexpr (sizeof(R) == 8) {
    LogisticMixtureForwardRef(p, x, l);
    LogisticMixtureBackwardRef(p, x, d_l, d_p);
  } else {
    LogisticMixtureForward(p, x, l);
    LogisticMixtureBackward(p, x, d_l, d_p);
  }
  double nll = 0;
  for (const R value : loglik) nll -= value;
  const auto nll_sum = static_cast<R>(nll);
  const auto bits = static_cast<R>(nll / (std::log(2) * static_cast<double>(pixels.size())));
  worst.Compare<R>("loglik", loglik, golden.Get("loglik").values, tolerances.forward);
  worst.Compare<R>("nll_sum", {&nll_sum, 1}, golden.Get("nll_sum").values, tolerances.forward);
  worst.Compare<R>("bits_per_dim", {&bits, 1}, golden.Get("bits_per_dim").values,
                   tolerances.forward);
  worst.Compare<R>("dparams", d_params, golden.Get("dparams").values, tolerances.gradient);
}

void CheckMixture(const Golden& golden, int64_t channels, Worst& worst) {
  CheckMixtureIn<double>(golden, channels, kF64, worst);
  CheckMixtureIn<float>(golden, channels, kF32Mixture, worst);
}

// ---- The table: one line an op ----

struct MixerOp {
  std::string_view op, mixer;
  bool causal = true, normalise = true;
  std::string_view feature_map = "";  // the mixer's default
};
constexpr MixerOp kMixerOps[] = {
    {"linear_attn_causal", "linear"},
    {"linear_attn_noncausal", "linear", false},
    {"linear_attn_unnormalized", "linear", true, false, "identity"},
    {"retention", "retention"},
    {"simple_gla", "simple_gla"},
    {"gla", "gla"},
    {"delta_rule", "delta"},
    {"gated_delta_rule", "gated_delta"},
    {"kda", "kda"},
    {"performer_causal", "performer"},
    {"performer_noncausal", "performer", false},
    {"softmax_causal", "softmax"},
    {"softmax_noncausal", "softmax", false},
};

struct MixtureOp {
  std::string_view op;
  int64_t channels;
};
constexpr MixtureOp kMixtureOps[] = {
    {"discretized_logistic_mixture", 3},
    {"discretized_logistic_mixture_1ch", 1},
};

MixerOptions OptionsOf(const MixerOp& row, const Golden& golden) {
  MixerOptions options;
  options.causal = row.causal;
  options.cross = !row.causal && golden.Get("q").shape.at(1) != golden.Get("k").shape.at(1);
  options.scale = golden.Number("scale", 0);
  options.eps = golden.Number("eps", options.eps);
  options.window = static_cast<int64_t>(golden.Number("window", 0));
  options.normalise = row.normalise;
  if (!row.feature_map.empty()) options.feature_map = &FeatureMapByName(row.feature_map);
  const auto norm = golden.metadata.find("qk_norm");
  if (norm != golden.metadata.end() &&
      norm->second.find("sqrt(sum(x^2)+1e-6)") != std::string::npos)
    options.feature_map = &FeatureMapByName("l2");
  return options;
}

// False if the op is not in the table.
bool CheckSafetensors(const std::string& path, std::string& op, Worst& worst) {
  const Golden golden = ReadGolden(path);
  op = golden.metadata.count("op") ? golden.metadata.at("op") : "";
  for (const auto& row : kMixerOps)
    if (row.op == op) {
      const MixerOptions options = OptionsOf(row, golden);
      if (row.mixer == "performer")
        CheckPerformer(golden, options, worst);
      else
        CheckMixer(MixerByName(row.mixer), golden, options, worst);
      return true;
    }
  for (const auto& row : kMixtureOps)
    if (row.op == op) {
      CheckMixture(golden, row.channels, worst);
      return true;
    }
  return false;
}

// linear_elu1.json: one set of q, k, v; causal and not, whole and with lengths. Outputs only.
void CheckLinearElu1(const std::string& path, const nlohmann::json& json, Worst& worst) {
  struct Run {
    std::string prefix;
    bool causal, lengths;
  };
  for (const Run& run : {Run{"causal_", true, false}, Run{"causal_len_", true, true},
                         Run{"noncausal_len_", false, true}}) {
    Golden golden{path, {}, {}};
    const auto take = [&](const std::string& name, const std::string& key) {
      if (json.contains(key)) Flatten(json.at(key), 0, golden.tensors[name]);
    };
    for (const char* name : {"q", "k", "v"}) take(name, name);
    if (run.lengths) take("lengths", "lengths");
    take("o", run.prefix + "o");
    take("ht", run.prefix + "state_kv");
    take("zt", run.prefix + "state_z");
    if (!golden.Has("o")) continue;
    MixerOptions options;
    options.causal = run.causal;
    options.scale = 1;
    options.eps = json.at("eps").get<double>();
    CheckMixer(MixerByName("linear"), golden, options, worst);
  }
}

// gla.json and its relatives: one case each, outputs only. The mixer is the one whose gates the
// file has.
void CheckGated(const std::string& path, const nlohmann::json& json, Worst& worst) {
  Golden golden{path, {}, {}};
  for (const auto& [name, key] : {std::pair{"q", "q"},
                                  {"k", "k"},
                                  {"v", "v"},
                                  {"g", "g"},
                                  {"beta", "beta"},
                                  {"h0", "h0"},
                                  {"o", "o"},
                                  {"ht", "final_state"}})
    if (json.contains(key)) Flatten(json.at(key), 0, golden.tensors[name]);
  const auto decay = !golden.Has("g")                    ? Decay::kNone
                     : golden.Get("g").shape.size() == 3 ? Decay::kScalar
                                                         : Decay::kPerChannel;
  const auto write = golden.Has("beta") ? Write::kDelta : Write::kAdd;
  for (const Mixer* mixer : AllMixers())
    if (mixer->family == Family::kState && mixer->decay == decay && mixer->write == write &&
        !mixer->fixed_decay && !mixer->normalised)
      return CheckMixer(*mixer, golden, {}, worst);
}

bool CheckJson(const std::string& path, std::string& kind, Worst& worst) {
  const auto json = ParseJson(AsText(ReadFile(path, "golden")), "golden", path);
  kind = json.is_object() ? json.value("layout", "no layout") : "no layout";
  if (!json.is_object()) return false;
  if (json.contains("causal_o") && json.contains("causal_state_z")) {
    CheckLinearElu1(path, json, worst);
    return true;
  }
  if (!json.contains("o") || !json.contains("final_state")) return false;
  CheckGated(path, json, worst);
  return true;
}

// ---- Files ----

enum class Verdict { kPassed, kSkipped, kFailed };

Verdict CheckFile(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  Worst worst;
  std::string kind;
  try {
    const bool known = path.extension() == ".json" ? CheckJson(path.string(), kind, worst)
                                                   : CheckSafetensors(path.string(), kind, worst);
    if (!known) {
      fmt::print("skipped  {}: unknown {} '{}'\n", name,
                 path.extension() == ".json" ? "kind" : "op", Printable(kind));
      return Verdict::kSkipped;
    }
  } catch (const std::exception& e) {
    fmt::print("FAILED   {}: {}\n", name, e.what());
    return Verdict::kFailed;
  }
  const bool passed = worst.ratio() <= 1;
  fmt::print("{}  {}: worst error {:.2e} ({}), tolerance {:.0e}, {} tensors\n",
             passed ? "passed " : "FAILED ", name, worst.error, worst.what, worst.tolerance,
             worst.compared);
  return passed ? Verdict::kPassed : Verdict::kFailed;
}

std::vector<std::filesystem::path> GoldenFiles(const std::string& directory) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const auto extension = it->path().extension();
    if (extension == ".safetensors" || extension == ".json") files.push_back(it->path());
  }
  Check(!error, "golden", "cannot read the directory '{}': {}", directory, error.message());
  Check(!files.empty(), "golden", "'{}' holds no golden file", directory);
  std::sort(files.begin(), files.end());
  return files;
}

int Run(int count, char** directories) {
  int verdicts[3] = {};
  for (int i = 0; i < count; ++i)
    for (const auto& file : GoldenFiles(directories[i]))
      ++verdicts[static_cast<int>(CheckFile(file))];
  fmt::print("{} passed, {} skipped, {} failed\n", verdicts[0], verdicts[1], verdicts[2]);
  return verdicts[2] > 0 ? 1 : 0;
}

}  // namespace
}  // namespace linattn

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: golden_check DIR...\n");
    return 2;
  }
  try {
    return linattn::Run(argc - 1, argv + 1);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
