#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "kernels/favor_map.h"

namespace linattn {
namespace {

using Row = std::vector<double>;

Row NormalRow(int64_t K, Random& random) {
  Row row(static_cast<size_t>(K));
  for (double& x : row) x = random.Normal();
  return row;
}

double Dot(const Row& x, const Row& y) {
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

// Subtracts from `row` its parts along `others` (twice: once leaves what cancellation lost) and
// makes its length 1.
void Orthonormalise(const std::vector<Row>& others, Row& row) {
  for (int pass = 0; pass < 2; ++pass) {
    for (const Row& other : others) {
      const double along = Dot(other, row);
      for (size_t i = 0; i < row.size(); ++i) row[i] -= along * other[i];
    }
  }
  const double length = std::sqrt(Dot(row, row));
  for (double& x : row) x /= length;
}

}  // namespace

std::vector<float> OrthogonalProjection(int64_t M, int64_t K, uint64_t seed) {
  Check(M >= 1 && K >= 1, "favor",
        "a projection must have at least one row and column, but M={}, K={}", M, K);
  Random random(seed);
  std::vector<float> projection;
  std::vector<Row> block;
  for (int64_t m = 0; m < M; ++m) {
    if (m % K == 0) block.clear();
    Row row = NormalRow(K, random);
    Orthonormalise(block, row);
    const Row other = NormalRow(K, random);
    const double length = std::sqrt(Dot(other, other));
    for (const double x : row) projection.push_back(static_cast<float>(length * x));
    block.push_back(std::move(row));
  }
  return projection;
}

int64_t DefaultFavorFeatures(int64_t K) {
  const double wanted = static_cast<double>(K) * std::log(static_cast<double>(K));
  return std::max<int64_t>(16, static_cast<int64_t>(std::ceil(wanted / 16)) * 16);
}

namespace {

// The maps of one K, for both roles.
struct Pair {
  int64_t K;
  FavorMap query, key;
  Pair* next = nullptr;
};

// Pairs are added and never removed, so that readers need no lock.
const Pair& PairFor(int64_t K) {
  static std::atomic<Pair*> first{nullptr};
  static std::mutex adding;
  const auto find = [K]() -> const Pair* {
    for (const Pair* p = first.load(std::memory_order_acquire); p; p = p->next)
      if (p->K == K) return p;
    return nullptr;
  };
  if (const Pair* pair = find()) return *pair;
  const std::lock_guard lock(adding);
  if (const Pair* pair = find()) return *pair;
  const auto projection = OrthogonalProjection(DefaultFavorFeatures(K), K, 0);
  auto* pair = new Pair{.K = K,
                        .query = FavorMap(FavorRole::kQuery, projection, K),
                        .key = FavorMap(FavorRole::kKey, projection, K),
                        .next = first.load(std::memory_order_relaxed)};
  first.store(pair, std::memory_order_release);
  return *pair;
}

// One role of PairFor, whatever K is.
class AnyWidth final : public FeatureMap {
 public:
  AnyWidth(FavorRole role, const FeatureMap* keys) : role_(role), keys_(keys) {}
  std::string_view name() const override { return "favor"; }
  int64_t Features(int64_t K) const override { return DefaultFavorFeatures(K); }
  const FeatureMap& OfKeys() const override { return keys_ ? *keys_ : *this; }
  void Forward(const float* x, int64_t rows, int64_t K, float* y) const override {
    Map(K).Forward(x, rows, K, y);
  }
  void Forward(const double* x, int64_t rows, int64_t K, double* y) const override {
    Map(K).Forward(x, rows, K, y);
  }
  void Backward(const float* x, const float* y, const float* d_y, int64_t rows, int64_t K,
                float* d_x) const override {
    Map(K).Backward(x, y, d_y, rows, K, d_x);
  }
  void Backward(const double* x, const double* y, const double* d_y, int64_t rows, int64_t K,
                double* d_x) const override {
    Map(K).Backward(x, y, d_y, rows, K, d_x);
  }

 private:
  const FavorMap& Map(int64_t K) const {
    const Pair& pair = PairFor(K);
    return role_ == FavorRole::kQuery ? pair.query : pair.key;
  }
  FavorRole role_;
  const FeatureMap* keys_;
};

}  // namespace

const FeatureMap& DefaultFavorMap() {
  static const AnyWidth key(FavorRole::kKey, nullptr);
  static const AnyWidth query(FavorRole::kQuery, &key);
  return query;
}

}  // namespace linattn
