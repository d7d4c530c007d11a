#include "data/vocabulary.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/child_process.h"
#include "base/error.h"
#include "data/piece_encoder.h"

namespace linattn {
namespace {

constexpr const char* kWhere = "vocabulary";
constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, which stands for a space in pieces
constexpr size_t kBlock = 1 << 16;                   // bytes that are encoded together, about

OpenPieceEncoder& Module() {
  int how = RTLD_NOW | RTLD_LOCAL;
#ifndef LINATTN_SANITIZED  // which cannot do it, and has no LibTorch beside it
  how |= RTLD_DEEPBIND;       // the library's own protobuf, not one that is there already
#endif
  static void* const module = dlopen(SiblingProgram(kPieceModule, kWhere).c_str(), how);
  Check(module != nullptr, kWhere, "{} must be one that can be opened, but: {}", kPieceModule,
        module == nullptr ? dlerror() : "");
  return *reinterpret_cast<OpenPieceEncoder*>(dlsym(module, kOpenPieceEncoder));
}

// The bytes that a piece stands for.
std::string Surface(const PieceEncoder::Piece& of) {
  const std::string& piece = of.text;
  switch (of.kind) {
    case PieceEncoder::Piece::Kind::kByte: {  // "<0xE8>"
      unsigned value = 0;
      std::from_chars(piece.data() + 3, piece.data() + piece.size() - 1, value, 16);
      return std::string(1, static_cast<char>(value));
    }
    case PieceEncoder::Piece::Kind::kControl:
      return "";
    case PieceEncoder::Piece::Kind::kUnknown:
      return " \xE2\x81\x87 ";  // as the library has it
    case PieceEncoder::Piece::Kind::kText:
      break;
  }
  std::string text;
  for (size_t i = 0; i < piece.size();) {
    const bool space = piece.compare(i, kSpace.size(), kSpace) == 0;
    text += space ? ' ' : piece[i];
    i += space ? kSpace.size() : 1;
  }
  return text;
}

}  // namespace

struct Vocabulary::Pieces {
  Bytes file;
  std::unique_ptr<PieceEncoder> encoder;
  std::vector<std::string> surfaces;  // [pieces]
  bool adds_space = false;            // before a text, as many vocabularies do
};

Vocabulary::Vocabulary(int64_t size, std::span<const uint8_t> sentencepiece) : size_(size) {
  if (sentencepiece.empty()) return;
  auto pieces = std::make_shared<Pieces>();
  pieces->file.assign(sentencepiece.begin(), sentencepiece.end());
  const std::string_view proto = AsText(pieces->file);
  std::string error;
  pieces->encoder.reset(Module()(proto.data(), proto.size(), error));
  Check(pieces->encoder != nullptr, kWhere, "must be a SentencePiece model, but is not: {}", error);
  const auto all = pieces->encoder->Pieces();
  const int64_t count = std::ssize(all);
  Check(size == 0 || count == size, kWhere,
        "the vocabulary must have the model's {} symbols, but has {} (model.vocab)", size, count);
  size_ = count;
  for (const auto& piece : all) pieces->surfaces.push_back(Surface(piece));
  std::vector<int> first;
  pieces->adds_space = pieces->encoder->Encode("a", first).empty() && !first.empty() &&
                       all[first[0]].text.starts_with(kSpace);
  processor_ = std::move(pieces);
}

Vocabulary Vocabulary::Open(const std::string& path) {
  const Bytes file = ReadFile(path, kWhere);
  Check(!file.empty(), kWhere, "{} must be a SentencePiece model, but is empty", path);
  try {
    return Vocabulary(0, file);
  } catch (const Error& e) {
    throw Error(kWhere, fmt::format("{}: {}", path, e.what()), e.fault());
  }
}

std::span<const uint8_t> Vocabulary::file() const {
  return pieces() ? std::span<const uint8_t>(processor_->file) : std::span<const uint8_t>();
}

std::vector<int32_t> Vocabulary::Encode(std::string_view text, bool begins) const {
  if (pieces()) return EncodePieces(text, begins);
  if (ids()) return EncodeIds(text);
  std::vector<int32_t> symbols;
  for (const char byte : text) symbols.push_back(static_cast<uint8_t>(byte));
  return symbols;
}

std::vector<int32_t> Vocabulary::EncodePieces(std::string_view text, bool begins) const {
  // The space that the vocabulary adds is the text's own, or one too many.
  if (!begins && processor_->adds_space && text.starts_with(' ')) text.remove_prefix(1);
  std::vector<int32_t> symbols;
  while (!text.empty()) {
    const size_t end = text.find('\n', std::min(kBlock, text.size()));
    const std::string_view block = text.substr(0, end == text.npos ? end : end + 1);
    std::vector<int> ids;
    const std::string error = processor_->encoder->Encode(block, ids);
    Check(error.empty(), kWhere, "the text must be one that SentencePiece can encode, but: {}",
          error);
    symbols.insert(symbols.end(), ids.begin(), ids.end());
    text.remove_prefix(block.size());
  }
  return symbols;
}

std::vector<int32_t> Vocabulary::EncodeIds(std::string_view text) const {
  constexpr const char* kBetween = " ,\t\r\n";
  std::vector<int32_t> symbols;
  for (size_t at = text.find_first_not_of(kBetween); at != text.npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    const bool whole = error == std::errc() && stop == text.data() + end;
    Check(whole && id >= 0 && id < size_, kWhere,
          "the text must be token ids from 0 to {} (the model's vocabulary is not bytes, but that "
          "of another program's tokenizer), but has '{}'",
          size_ - 1, Printable(text.substr(at, end - at)));
    symbols.push_back(id);
    at = text.find_first_not_of(kBetween, end);
  }
  return symbols;
}

std::string Vocabulary::TextOf(int32_t symbol, bool first) const {
  if (bytes()) return std::string(1, static_cast<char>(symbol));
  if (ids()) return fmt::format("{}{}", first ? "" : " ", symbol);
  const std::string& text = processor_->surfaces.at(symbol);
  return first && processor_->adds_space && text.starts_with(' ') ? text.substr(1) : text;
}

std::string Vocabulary::Decode(std::span<const int32_t> symbols) const {
  std::string text;
  for (size_t i = 0; i < symbols.size(); ++i) text += TextOf(symbols[i], i == 0);
  return text;
}

}  // namespace linattn
