#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/array.h"
#include "base/file.h"

// The safetensors format: 8 bytes header length (little-endian), a JSON header, the tensors' bytes
// back to back. https://github.com/huggingface/safetensors
namespace linattn {

struct StoredTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;      // [] is a scalar
  std::span<const uint8_t> bytes;  // little-endian, row-major; any alignment

  int64_t size() const;             // elements
  std::string ShapeString() const;  // "[2,16]"
};

// A whole file in memory, checked: every byte of it belongs to the header or to exactly one tensor.
class SafetensorsFile {
 public:
  // Throws Error "[where] path: ..." that names tensor and numbers: a file that is cut, a Git LFS
  // pointer, bad JSON, unknown keys or dtypes, shapes that disagree with offsets, overlaps, gaps,
  // bytes left over.
  static SafetensorsFile Open(const std::string& path, std::string_view where = "model");
  static SafetensorsFile Parse(Bytes bytes, const std::string& name,
                               std::string_view where = "model");

  const std::string& path() const { return path_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }

  // Throw Error naming the file if there is no such tensor, or (Floats, Doubles) if it is not of a
  // float type. F16, BF16 and F32 widen exactly; Floats rounds F64, and refuses finite values that
  // F32 cannot hold.
  const StoredTensor& Get(const std::string& name) const;
  std::vector<float> Floats(const std::string& name) const;
  std::vector<double> Doubles(const std::string& name) const;
  std::vector<int64_t> Integers(const std::string& name) const;  // I8..I64, U8, BOOL

  SafetensorsFile(SafetensorsFile&&) = default;  // not copied: the tensors are views of bytes_
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

 private:
  SafetensorsFile() = default;

  std::string path_, where_;
  Bytes bytes_;
  std::map<std::string, StoredTensor> tensors_;  // views of bytes_
  std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
  std::string name;
  StoredTensor tensor;
};

template <class T>
NamedTensor ToStore(std::string name, std::vector<int64_t> shape, std::span<const T> values) {
  return {std::move(name),
          {DTypeOf<T>(),
           std::move(shape),
           {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()}}};
}

// Writes atomically. Tensors keep their order, apart from wider elements coming first, so that
// every tensor is aligned to its elements (data begin at a multiple of 8). Throws Error on a name
// that occurs twice or a size that is not the shape's.
void WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace linattn
