#include "runtime/generate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "runtime/full_pass.h"
#include "runtime/session.h"
#include "runtime/symbol_sampler.h"

namespace linattn {
namespace {

// What the loop needs of a model: read tokens, tell the outputs.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void Reset(int64_t slot) = 0;  // a new sequence
  virtual void Read(int64_t slot, std::span<const int32_t> tokens) = 0;
  virtual void Step(std::span<const int64_t> slots, std::span<const int32_t> tokens) = 0;
  virtual std::span<const float> outputs(int64_t slot) const = 0;
};

class CachedDecoder : public Decoder {
 public:
  CachedDecoder(const PackedModel& model, int64_t slots, int64_t capacity)
      : session_(model, slots, capacity) {}
  void Reset(int64_t slot) override { session_.Reset(slot); }
  void Read(int64_t slot, std::span<const int32_t> tokens) override {
    session_.Prefill(slot, tokens);
  }
  void Step(std::span<const int64_t> slots, std::span<const int32_t> tokens) override {
    session_.Step(slots, tokens);
  }
  std::span<const float> outputs(int64_t slot) const override { return session_.outputs(slot); }

 private:
  Session session_;
};

class UncachedDecoder : public Decoder {
 public:
  UncachedDecoder(const PackedModel& model, int64_t slots)
      : pass_(model), tokens_(slots), outputs_(slots) {}
  void Reset(int64_t slot) override { tokens_[slot].clear(); }
  void Read(int64_t slot, std::span<const int32_t> tokens) override {
    tokens_[slot].insert(tokens_[slot].end(), tokens.begin(), tokens.end());
    Recompute({&slot, 1});
  }
  void Step(std::span<const int64_t> slots, std::span<const int32_t> tokens) override {
    bool same = true;
    for (size_t i = 0; i < slots.size(); ++i) {
      tokens_[slots[i]].push_back(tokens[i]);
      same &= tokens_[slots[i]].size() == tokens_[slots[0]].size();
    }
    if (same) return Recompute(slots);
    for (const int64_t& slot : slots) Recompute({&slot, 1});
  }
  std::span<const float> outputs(int64_t slot) const override { return outputs_[slot]; }

 private:
  // Slots whose sequences have one length.
  void Recompute(std::span<const int64_t> slots) {
    std::vector<int32_t> all;
    for (const int64_t slot : slots) {
      all.insert(all.end(), tokens_[slot].begin(), tokens_[slot].end());
    }
    const std::span<const float> outputs =
        pass_.Run(all, static_cast<int64_t>(slots.size()), FullPass::Positions::kLast);
    const size_t width = outputs.size() / slots.size();
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::span<const float> row = outputs.subspan(i * width, width);
      outputs_[slots[i]].assign(row.begin(), row.end());
    }
  }

  FullPass pass_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<float>> outputs_;
};

void CheckRequest(const ModelConfig& c, const Request& request, size_t index, bool cached) {
  const int64_t length = static_cast<int64_t>(request.symbols.size());
  const int64_t longest = cached ? LongestSequence(c) : c.max_len;
  Check(length >= 1 && length <= longest, "generate",
        "a sequence must have from 1 to {} tokens, the model's maximum, but sequence {} has {}",
        longest, index, length);
  Check(request.label >= 0 && request.label < std::max<int64_t>(1, c.classes), "generate",
        "the class must be from 0 to {}, but is {}", std::max<int64_t>(1, c.classes) - 1,
        request.label);
  for (size_t i = 0; i < request.symbols.size(); ++i) {
    const int32_t symbol = request.symbols[i];
    Check(symbol == kUnknown || (symbol >= 0 && symbol < c.vocab), "generate",
          "token {} of sequence {} must be from 0 to {} (a vocabulary of {}), but is {}", i, index,
          c.vocab - 1, c.vocab, symbol);
  }
}

// A group of requests, slot i for the i-th, on its way through the sequence.
class Group {
 public:
  Group(const PackedModel& model, Decoder& decoder, std::span<Request> requests, size_t first,
        const GenerateOptions& options)
      : model_(model),
        decoder_(decoder),
        requests_(requests),
        first_(first),
        options_(options),
        sample_(model.config(), options.sampler) {
    for (const Request& request : requests) random_.emplace_back(options.seed, request.stream);
    next_.resize(requests.size());
  }

  // Reads start tokens and the known beginnings; sequences that know nothing start together.
  void Start() {
    slots_.clear();
    tokens_.clear();
    for (size_t i = 0; i < requests_.size(); ++i) {
      const int64_t slot = static_cast<int64_t>(i);
      const std::vector<int32_t>& symbols = requests_[i].symbols;
      // The last symbol is never read: nothing follows it.
      const auto unknown = std::find(symbols.begin(), symbols.end() - 1, kUnknown);
      std::vector<int32_t> tokens = {
          static_cast<int32_t>(model_.config().start_token(requests_[i].label))};
      tokens.insert(tokens.end(), symbols.begin(), unknown);
      next_[i] = tokens.size() - 1;
      decoder_.Reset(slot);
      if (tokens.size() > 1) {
        decoder_.Read(slot, tokens);
      } else {
        slots_.push_back(slot);
        tokens_.push_back(tokens[0]);
      }
    }
    if (!slots_.empty()) decoder_.Step(slots_, tokens_);
  }

  // Settles one symbol of every sequence that is not done; false when all are.
  bool Advance() {
    slots_.clear();
    tokens_.clear();
    for (size_t i = 0; i < requests_.size(); ++i) {
      std::vector<int32_t>& symbols = requests_[i].symbols;
      if (next_[i] == symbols.size()) continue;
      int32_t& symbol = symbols[next_[i]];
      if (symbol == kUnknown) symbol = Draw(i);
      if (++next_[i] == symbols.size()) continue;
      slots_.push_back(static_cast<int64_t>(i));
      tokens_.push_back(symbol);
    }
    if (slots_.empty()) return false;
    decoder_.Step(slots_, tokens_);
    return true;
  }

  int64_t done() const {
    int64_t sum = 0;
    for (const size_t n : next_) sum += static_cast<int64_t>(n);
    return sum;
  }

 private:
  int32_t Draw(size_t i) {
    const std::span<const float> outputs = decoder_.outputs(static_cast<int64_t>(i));
    const int64_t place = static_cast<int64_t>(next_[i]);
    CheckOutputs(outputs, place, first_ + i);
    const int32_t symbol = sample_(outputs, place, random_[i]);
    if (options_.sampled) options_.sampled(first_ + i, symbol);
    return symbol;
  }

  const PackedModel& model_;
  Decoder& decoder_;
  std::span<Request> requests_;
  size_t first_;  // index of requests_[0] among all
  const GenerateOptions& options_;
  SymbolSampler sample_;
  std::vector<Random> random_;
  std::vector<size_t> next_;  // the symbol to be settled next
  std::vector<int64_t> slots_;
  std::vector<int32_t> tokens_;
};

}  // namespace

void Generate(const PackedModel& model, std::span<Request> requests,
              const GenerateOptions& options) {
  Check(options.batch >= 1, "generate", "the batch must be at least 1, but is {}", options.batch);
  Check(model.config().causal, "generate", "the model must be causal, but is bidirectional");
  CheckSampler(options.sampler);
  int64_t total = 0, capacity = 1, done = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    CheckRequest(model.config(), requests[i], i, options.cached);
    const int64_t length = static_cast<int64_t>(requests[i].symbols.size());
    capacity = std::max(capacity, length);
    total += length;
  }
  if (requests.empty()) return;
  const size_t batch = std::min(static_cast<size_t>(options.batch), requests.size());
  std::unique_ptr<Decoder> decoder;
  if (options.cached) {
    decoder = std::make_unique<CachedDecoder>(model, static_cast<int64_t>(batch), capacity);
  } else {
    decoder = std::make_unique<UncachedDecoder>(model, static_cast<int64_t>(batch));
  }
  for (size_t first = 0; first < requests.size(); first += batch) {
    const auto members = requests.subspan(first, std::min(batch, requests.size() - first));
    Group group(model, *decoder, members, first, options);
    group.Start();
    bool more = true;
    while (more) {
      more = group.Advance();
      if (options.progress) options.progress(done + group.done(), total);
    }
    done += group.done();
  }
}

}  // namespace linattn
