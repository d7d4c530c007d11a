#include "cli/generate_text.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/steady_seconds.h"
#include "bench/process_memory.h"
#include "cli/console.h"
#include "data/text_stream.h"
#include "model/layer.h"
#include "runtime/continuation.h"
#include "runtime/generate.h"

namespace linattn::cli {
namespace {

// The prompt in blocks, so that one of any length takes little memory.
class PromptReader {
 public:
  PromptReader(const TextOptions& o, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), text_(o.prompt) {
    Check(o.prompt.empty() || o.prompt_file.empty(), "generate",
          "the prompt must be given once: by --prompt, --prompt-file or -");
    if (o.prompt_file.empty()) return;
    if (o.prompt_file == "-") {
      file_ = stdin;
      return;
    }
    file_ = std::fopen(o.prompt_file.c_str(), "rb");
    Check(file_ != nullptr, "generate", "cannot read '{}': {}", o.prompt_file, strerror(errno));
  }
  ~PromptReader() {
    if (file_ != nullptr && file_ != stdin) std::fclose(file_);
  }
  PromptReader(const PromptReader&) = delete;
  PromptReader& operator=(const PromptReader&) = delete;

  // Some symbols; none at the end. `begins`: nothing stands before the prompt.
  std::vector<int32_t> Next(bool begins) {
    while (true) {
      const size_t left = text_.size();
      const bool end = !Fill();
      // Where symbols may be longer than a byte, up to the last line that is whole; what was left
      // of the text before holds no newline.
      size_t size = text_.size();
      if (!end && !vocabulary_.bytes()) {
        const size_t newline = std::string_view(text_).substr(left).rfind('\n');
        size = newline == std::string_view::npos ? 0 : left + newline + 1;
      }
      if (size == 0 && !end) continue;
      const std::string block = text_.substr(0, size);
      text_.erase(0, size);
      const std::vector<int32_t> symbols = vocabulary_.Encode(block, begins);
      if (!symbols.empty() || end) return symbols;
    }
  }

 private:
  bool Fill() {  // false if there is no more
    constexpr size_t kBlock = 1 << 16;
    if (file_ == nullptr) return false;
    const size_t before = text_.size();
    text_.resize(before + kBlock);
    const size_t n = std::fread(text_.data() + before, 1, kBlock, file_);
    text_.resize(before + n);
    Check(std::ferror(file_) == 0, "generate", "the prompt cannot be read to its end");
    ThrowIfInterrupted();
    return n == kBlock;
  }

  const Vocabulary& vocabulary_;
  std::string text_;
  std::FILE* file_ = nullptr;
};

// The end of a text; `whole`: all of it.
std::string Decode(const Vocabulary& vocabulary, std::span<const int32_t> symbols, bool whole) {
  std::string text;
  for (size_t i = 0; i < symbols.size(); ++i) {
    text += vocabulary.TextOf(symbols[i], whole && i == 0);
  }
  return text;
}

// Where new symbols go: text as it can be shown to standard output, all bytes to a file.
class TextSink {
 public:
  // What the new symbols go on with.
  struct Before {
    std::string text;   // of which only the last bytes count: they may begin a character
    std::string drawn;  // may begin a stop string
  };
  TextSink(const TextOptions& o, const Vocabulary& vocabulary, const Before& before)
      : vocabulary_(vocabulary), goes_on_(!o.save_state.empty()), stops_(o.stops) {
    if (!o.out.empty() && o.out != "-") file_.emplace(o.out);
    shown_.Push(before.text);
    stops_.Begin(before.drawn);
  }

  void Add(int32_t symbol, bool first) { Emit(stops_.Push(vocabulary_.TextOf(symbol, first))); }
  bool stopped() const { return stops_.stopped(); }

  void Finish() {
    std::string rest = stops_.Finish();
    if (vocabulary_.ids()) rest += "\n";
    Emit(rest);
    if (file_) return file_->Commit();
    // A character that is cut by a saved state is shown when the text goes on.
    if (begun_ && !(goes_on_ && !stopped())) Write(shown_.Finish());
    if (isatty(STDOUT_FILENO)) Write("\n");
  }

 private:
  void Emit(std::string_view bytes) {
    // Ids have a space between; before the first of an output stands nothing.
    if (!begun_ && vocabulary_.ids() && bytes.starts_with(' ')) bytes.remove_prefix(1);
    begun_ |= !bytes.empty();
    if (file_) return file_->Append(AsBytes(bytes));
    Write(shown_.Push(bytes));
  }

  const Vocabulary& vocabulary_;
  bool goes_on_, begun_ = false;
  StopStrings stops_;
  Utf8Stream shown_;
  std::optional<AtomicFile> file_;
};

// Reads the prompt behind what a state file holds; what is in the cache is not computed again.
class Beginning {
 public:
  Beginning(const TextOptions& o, const Vocabulary& vocabulary, Continuation& text)
      : o_(o), text_(text), reader_(o, vocabulary) {}

  void Read() {
    if (!o_.load_state.empty()) text_.Load(o_.load_state);
    const int64_t before = text_.length();
    uint64_t digest = text_.digest();
    const bool cached = !o_.prompt_cache.empty() && LoadCache();
    std::vector<int32_t> held;  // what may be in the cache
    bool open = cached;         // whether it is has not been settled
    for (bool begins = before == 0;; begins = false) {
      std::vector<int32_t> block = reader_.Next(begins);
      if (block.empty()) break;
      if (!open) {
        text_.Read(block);
        continue;
      }
      held.insert(held.end(), block.begin(), block.end());
      if (std::ssize(held) < cached_) continue;
      open = false;
      Settle(held, digest);
    }
    if (open) Settle(held, digest);
    if (!o_.prompt_cache.empty() && (!hit_ || text_.evaluated() > 0)) text_.Save(o_.prompt_cache);
    Report(before);
  }

 private:
  bool LoadCache() {
    Check(o_.load_state.empty(), "generate", "--prompt-cache must be left out with --load-state");
    if (access(o_.prompt_cache.c_str(), F_OK) != 0) return false;
    try {
      text_.Load(o_.prompt_cache);
    } catch (const Error& e) {
      why_ = e.what();
      text_.Reset();
      return false;
    }
    cached_ = text_.length();
    return true;
  }

  // `symbols`: the prompt until the cache's end or until its own.
  void Settle(const std::vector<int32_t>& symbols, uint64_t empty) {
    const bool enough = std::ssize(symbols) >= cached_;
    const auto known = std::span(symbols).first(enough ? cached_ : 0);
    hit_ = enough && Continuation::Extended(empty, known) == text_.digest();
    text_.EndRun();  // what is in the cache has become a prompt
    if (!hit_) {
      why_ = "it is of another text";
      text_.Reset();
    }
    text_.Read(std::span(symbols).subspan(hit_ ? cached_ : 0));
  }

  void Report(int64_t before) const {
    if (o_.quiet) return;
    if (!o_.load_state.empty()) {
      fmt::print(stderr, "{}: {} tokens read before\n", o_.load_state, before);
    }
    if (!o_.prompt_cache.empty()) {
      fmt::print(stderr, "{}: {}\n", o_.prompt_cache,
                 hit_ ? fmt::format("hit, {} tokens", cached_)
                      : "miss" + (why_.empty() ? "" : ", " + why_));
    }
    if (text_.length() > 0) {
      fmt::print(stderr, "prompt: {} tokens evaluated\n", text_.evaluated());
    }
  }

  const TextOptions& o_;
  Continuation& text_;
  PromptReader reader_;
  int64_t cached_ = 0;  // tokens in the cache
  bool hit_ = false;
  std::string why_;  // there was no hit
};

// Lines about speed and memory, every so many tokens.
class Timing {
 public:
  explicit Timing(int64_t every) : every_(every) {}
  void Count(int64_t length) {
    if (every_ == 0 || ++count_ % every_ != 0) return;
    const nlohmann::json line = {{"tokens", length},
                                 {"us_per_token", (SteadySeconds() - begin_) * 1e6 / every_},
                                 {"resident_bytes", bench::ResidentBytes()}};
    fmt::print(stderr, "{}\n", line.dump());
    begin_ = SteadySeconds();
  }

 private:
  int64_t every_, count_ = 0;
  double begin_ = SteadySeconds();
};

constexpr int64_t kStandardTokens = 256;
constexpr int64_t kKept = 64;  // symbols in a state file, at least

int64_t TokensToWrite(const TextOptions& o, const ModelConfig& c, int64_t length) {
  const bool endless = o.cached && LongestSequence(c) == kEndless;
  if (endless) return o.forever ? kEndless : o.tokens < 0 ? kStandardTokens : o.tokens;
  // The last token need not be read, except to save the state behind it.
  const int64_t left = c.max_len - length - (o.save_state.empty() ? 0 : 1);
  Check(left >= 0, "generate",
        "the prompt must be shorter than the model's maximum of {} tokens, but has {}", c.max_len,
        length);
  if (o.forever) return left;
  const int64_t tokens = o.tokens < 0 ? std::min(kStandardTokens, left) : o.tokens;
  Check(tokens <= left, "generate",
        "prompt and --tokens must be at most the model's maximum of {} tokens, but are {}",
        c.max_len - (o.save_state.empty() ? 0 : 1), length + tokens);
  return tokens;
}

// The baseline: everything is computed again for every token.
void GenerateUncached(const TextOptions& o, const LoadedModel& model, uint64_t seed) {
  Check(o.load_state.empty() && o.save_state.empty() && o.prompt_cache.empty() &&
            o.repetition_penalty == 1 && o.stops.empty(),
        "generate", "--no-cache must be alone: without states, penalty and stop strings");
  Request request;
  request.label = o.label;
  PromptReader reader(o, model.vocabulary);
  for (std::vector<int32_t> block; !(block = reader.Next(request.symbols.empty())).empty();) {
    request.symbols.insert(request.symbols.end(), block.begin(), block.end());
  }
  const int64_t length = std::ssize(request.symbols);
  const int64_t tokens = TokensToWrite(o, model.config(), length);
  TextSink sink(o, model.vocabulary, {Decode(model.vocabulary, request.symbols, true), ""});
  request.symbols.resize(length + tokens, kUnknown);
  GenerateOptions options;
  options.seed = seed, options.sampler = o.sampler, options.cached = false;
  options.progress = [](int64_t, int64_t) { ThrowIfInterrupted(); };
  options.sampled = [&, first = length == 0](size_t, int32_t symbol) mutable {
    sink.Add(symbol, std::exchange(first, false));
  };
  try {
    if (tokens > 0) Generate(model.model, {&request, 1}, options);
  } catch (const Interrupted&) {
    sink.Finish();
    throw;
  }
  sink.Finish();
}

int64_t LongestStop(const TextOptions& o) {
  size_t bytes = 0;
  for (const std::string& stop : o.stops) bytes = std::max(bytes, stop.size());
  return static_cast<int64_t>(bytes);
}

// What is told of the text so far. A symbol stands for a byte at least.
TextSink::Before BeforeOf(const TextOptions& o, const Continuation& text,
                          const Vocabulary& vocabulary) {
  constexpr int64_t kCharacter = 3;  // bytes of one that lacks something
  const auto decode = [&](int64_t symbols) {
    const std::span<const int32_t> last = text.Last(symbols);
    return Decode(vocabulary, last, std::ssize(last) == text.length());
  };
  return {decode(kCharacter), decode(std::min(text.run(), LongestStop(o)))};
}

// New tokens until there are enough, a stop string comes, or the user has had enough, which loses
// nothing. Returns their number.
int64_t WriteTokens(const TextOptions& o, Continuation& text, const LoadedModel& model) {
  const int64_t tokens = TokensToWrite(o, model.config(), text.length());
  TextSink sink(o, model.vocabulary, BeforeOf(o, text, model.vocabulary));
  Timing timing(o.timing);
  int64_t made = 0;
  const auto finish = [&] {
    sink.Finish();
    if (sink.stopped()) text.EndRun();
    if (!o.save_state.empty()) text.Save(o.save_state);
  };
  try {
    while (made < tokens && !sink.stopped()) {
      const bool first = text.length() == 0;
      sink.Add(text.Next(), first);
      ++made;
      timing.Count(text.length());
      ThrowIfInterrupted();
    }
  } catch (const Interrupted&) {
    finish();
    throw;
  } catch (const OutputClosed&) {
    if (!o.save_state.empty()) text.Save(o.save_state);
    throw;
  }
  finish();
  return made;
}

}  // namespace

void GenerateText(const TextOptions& o, const LoadedModel& model) {
  const uint64_t seed = SeedFrom(o.seed);
  if (o.seed.empty() && !o.quiet) fmt::print(stderr, "seed {}\n", seed);
  TokensToWrite(o, model.config(), 0);  // refuses what no prompt makes right before one is read
  if (!o.cached) return GenerateUncached(o, model, seed);
  Continuation text(model.model, {.seed = seed,
                                  .sampler = o.sampler,
                                  .repetition_penalty = o.repetition_penalty,
                                  .repetition_window = o.repetition_window,
                                  .kept = std::max(kKept, LongestStop(o)),
                                  .label = o.label});
  Beginning(o, model.vocabulary, text).Read();
  const double begin = SteadySeconds();
  const int64_t made = WriteTokens(o, text, model);
  if (o.quiet) return;
  fmt::print(stderr, "{} tokens, {:.0f} tokens/s, state {:.1f} kB\n", made,
             static_cast<double>(made) / std::max(1e-9, SteadySeconds() - begin),
             static_cast<double>(text.state_bytes()) / 1000);
  if (!o.save_state.empty()) {
    fmt::print(stderr, "{}: state of {} tokens\n", o.save_state, text.length());
  }
}

}  // namespace linattn::cli
