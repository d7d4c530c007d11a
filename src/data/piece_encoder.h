#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace linattn {

// What a SentencePiece vocabulary is asked. The library stands behind it, in a module of its own
// (src/pieces) that is opened when the first vocabulary is: it carries parts of protobuf, which must
// not meet the others that LibTorch brings into the same program.
class PieceEncoder {
 public:
  struct Piece {
    enum class Kind { kText, kByte, kControl, kUnknown };
    std::string text;
    Kind kind = Kind::kText;
  };

  virtual ~PieceEncoder() = default;
  virtual std::vector<Piece> Pieces() const = 0;
  // "" and the pieces' ids, or what is wrong.
  virtual std::string Encode(std::string_view text, std::vector<int>& ids) const = 0;
};

// What the module exports under this name: an encoder of the library's model file, which the caller
// deletes, or null and what is wrong.
using OpenPieceEncoder = PieceEncoder*(const char* proto, size_t size, std::string& error);
inline constexpr const char* kOpenPieceEncoder = "linattn_open_piece_encoder";
inline constexpr const char* kPieceModule = "linattn_pieces.so";

}  // namespace linattn
