#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace linattn {

// What the symbols of a text model stand for: bytes; pieces of a SentencePiece vocabulary (Kudo and
// Richardson 2018); or, where nobody knows, ids in decimal. Cheap to copy.
class Vocabulary {
 public:
  // Of a model: `sentencepiece` is the library's model file, or empty: then 256 symbols are bytes
  // and any other number ids. Throws Error if it is damaged or does not have `size` pieces.
  Vocabulary(int64_t size, std::span<const uint8_t> sentencepiece);
  // Of a SentencePiece file by itself. Throws Error naming it.
  static Vocabulary Open(const std::string& path);

  int64_t size() const { return size_; }
  bool bytes() const { return size_ == 256 && !pieces(); }
  bool pieces() const { return processor_ != nullptr; }
  bool ids() const { return !bytes() && !pieces(); }
  const char* unit() const { return bytes() ? "bytes" : "tokens"; }
  std::span<const uint8_t> file() const;  // what a model file carries; empty unless pieces()

  // Symbols of `text`, which begins the sequence or goes on with it. Long texts are cut behind
  // newlines, where no piece goes on. Ids: numbers between white space or commas; throws Error
  // naming one that is none.
  std::vector<int32_t> Encode(std::string_view text, bool begins = true) const;
  // Bytes of one symbol, the first of the sequence or not. Ids have a space between.
  std::string TextOf(int32_t symbol, bool first) const;
  std::string Decode(std::span<const int32_t> symbols) const;

 private:
  struct Pieces;
  std::vector<int32_t> EncodePieces(std::string_view text, bool begins) const;
  std::vector<int32_t> EncodeIds(std::string_view text) const;

  int64_t size_ = 0;
  std::shared_ptr<const Pieces> processor_;
};

}  // namespace linattn
