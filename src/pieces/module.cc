#include <sentencepiece_processor.h>

#include <memory>

#include "data/piece_encoder.h"

namespace linattn {
namespace {

class SentencePieceEncoder final : public PieceEncoder {
 public:
  std::string Load(const char* proto, size_t size) {
    const auto status = processor_.LoadFromSerializedProto({proto, size});
    return status.ok() ? "" : status.ToString();
  }

  std::vector<Piece> Pieces() const override {
    std::vector<Piece> pieces;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      Piece piece{processor_.IdToPiece(id)};
      if (processor_.IsByte(id)) piece.kind = Piece::Kind::kByte;
      if (processor_.IsControl(id) || processor_.IsUnused(id)) piece.kind = Piece::Kind::kControl;
      if (processor_.IsUnknown(id)) piece.kind = Piece::Kind::kUnknown;
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  std::string Encode(std::string_view text, std::vector<int>& ids) const override {
    const auto status = processor_.Encode({text.data(), text.size()}, &ids);
    return status.ok() ? "" : status.ToString();
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace
}  // namespace linattn

extern "C" linattn::PieceEncoder* linattn_open_piece_encoder(const char* proto, size_t size,
                                                             std::string& error) {
  auto encoder = std::make_unique<linattn::SentencePieceEncoder>();
  error = encoder->Load(proto, size);
  return error.empty() ? encoder.release() : nullptr;
}
