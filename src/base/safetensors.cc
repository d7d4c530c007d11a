#include "base/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace linattn {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // the reference implementation's limit
constexpr DType kDTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                             DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};

// An entry of the header; offsets count from the first byte after it.
struct Entry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t begin, end;
};

// What every message begins with.
struct Origin {
  std::string_view where;
  const std::string& path;

  template <class... Args>
  void Require(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) [[unlikely]]
      Fail(where, "{}: {}", path, fmt::format(format, std::forward<Args>(args)...));
  }
};

void RefuseLfsPointer(std::string_view text, const Origin& origin) {
  if (!text.starts_with("version https://git-lfs.github.com/spec/")) return;
  const size_t at = text.find("\nsize ");
  std::string_view size = at == text.npos ? "" : text.substr(at + 6);
  size = size.substr(0, size.find_first_not_of("0123456789"));
  origin.Require(false,
                 "is a Git LFS pointer of {} bytes, not the file itself ({} bytes); fetch it with "
                 "`git lfs pull`",
                 text.size(), size.empty() ? "unknown" : size);
}

// Length of the header, checked against the file before anything is read or allocated by it.
uint64_t HeaderLength(std::span<const uint8_t> bytes, const Origin& origin) {
  RefuseLfsPointer(AsText(bytes), origin);
  origin.Require(bytes.size() >= kLengthBytes,
                 "is cut short: a safetensors file begins with 8 bytes of header length, file ends "
                 "after {}",
                 bytes.size());
  uint64_t length;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  origin.Require(length <= kLongestHeader,
                 "header length must be at most {} bytes, but is {}: not a safetensors file, or "
                 "damaged",
                 kLongestHeader, length);
  origin.Require(length <= bytes.size() - kLengthBytes,
                 "header is cut short: needs {} bytes, file ends after {}", length,
                 bytes.size() - kLengthBytes);
  return length;
}

DType ParseDType(const nlohmann::json& json, const std::string& name, const Origin& origin) {
  origin.Require(json.is_string(), "tensor '{}': dtype must be a string, but is {}", name,
                 json.type_name());
  const auto& text = json.get_ref<const std::string&>();
  for (const DType dtype : kDTypes)
    if (NameOf(dtype) == text) return dtype;
  std::vector<std::string_view> known;
  for (const DType dtype : kDTypes) known.push_back(NameOf(dtype));
  Fail(origin.where, "{}: tensor '{}': dtype {} is not supported (only {})", origin.path, name,
       Printable(text), fmt::join(known, ", "));
}

uint64_t ParseCount(const nlohmann::json& json, std::string_view what, const std::string& name,
                    const Origin& origin) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  origin.Require(json.is_number_unsigned() && json.get<uint64_t>() <= kLargest,
                 "tensor '{}': {} must be whole numbers from 0 to {}, but one is {}", name, what,
                 kLargest, Printable(json.dump()));
  return json.get<uint64_t>();
}

// Bytes that dtype and shape ask for.
uint64_t SizeInBytes(const Entry& entry, const Origin& origin) {
  uint64_t size = static_cast<uint64_t>(SizeOf(entry.dtype));
  bool overflow = false, empty = false;
  for (const int64_t n : entry.shape) {
    empty |= n == 0;
    overflow |= __builtin_mul_overflow(size, static_cast<uint64_t>(n), &size);
  }
  origin.Require(empty || !overflow, "tensor '{}': shape [{}] overflows 64 bits", entry.name,
                 fmt::join(entry.shape, ","));
  return empty ? 0 : size;
}

Entry ParseEntry(const std::string& raw_name, const nlohmann::json& json, const Origin& origin) {
  Entry entry;
  entry.name = Printable(raw_name);  // for messages; the caller keeps the true one
  origin.Require(json.is_object(), "tensor '{}' must be an object, but is {}", entry.name,
                 json.type_name());
  for (const char* key : {"dtype", "shape", "data_offsets"})
    origin.Require(json.contains(key), "tensor '{}' has no {}", entry.name, key);
  for (const auto& item : json.items())
    origin.Require(item.key() == "dtype" || item.key() == "shape" || item.key() == "data_offsets",
                   "tensor '{}' has the unknown key '{}'", entry.name, Printable(item.key()));
  entry.dtype = ParseDType(json["dtype"], entry.name, origin);
  origin.Require(json["shape"].is_array(), "tensor '{}': shape must be a list", entry.name);
  for (const auto& n : json["shape"])
    entry.shape.push_back(static_cast<int64_t>(ParseCount(n, "sizes", entry.name, origin)));
  const auto& offsets = json["data_offsets"];
  origin.Require(offsets.is_array() && offsets.size() == 2,
                 "tensor '{}': data_offsets must be [begin, end]", entry.name);
  entry.begin = ParseCount(offsets[0], "data_offsets", entry.name, origin);
  entry.end = ParseCount(offsets[1], "data_offsets", entry.name, origin);
  const uint64_t size = SizeInBytes(entry, origin);
  origin.Require(entry.begin <= entry.end && entry.end - entry.begin == size,
                 "tensor '{}': {} of shape [{}] needs {} bytes, but data_offsets are [{},{}]",
                 entry.name, NameOf(entry.dtype), fmt::join(entry.shape, ","), size, entry.begin,
                 entry.end);
  entry.name = raw_name;
  return entry;
}

// The tensors must cover the data exactly: no overlap, no gap, no byte missing or left over.
void CheckLayout(std::vector<Entry>& entries, uint64_t data_size, const Origin& origin) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t expected = 0;
  const std::string* before = nullptr;
  for (const Entry& entry : entries) {
    const std::string name = Printable(entry.name);
    origin.Require(entry.begin >= expected,
                   "tensors '{}' and '{}' overlap: the first ends at byte {}, the second begins at "
                   "{}",
                   before ? Printable(*before) : "", name, expected, entry.begin);
    origin.Require(entry.begin == expected, "bytes {} to {} before tensor '{}' belong to no tensor",
                   expected, entry.begin, name);
    origin.Require(entry.end <= data_size,
                   "tensor '{}' is cut short: needs {} bytes, file ends after {}", name,
                   entry.end - entry.begin, data_size - std::min(data_size, entry.begin));
    expected = entry.end;
    before = &entry.name;
  }
  origin.Require(expected == data_size, "{} bytes follow the last tensor, which ends at byte {}",
                 data_size - expected, expected);
}

template <class T, class Convert>
auto Converted(const StoredTensor& tensor, Convert convert) {
  std::vector<decltype(convert(T{}))> result(tensor.bytes.size() / sizeof(T));
  for (size_t i = 0; i < result.size(); ++i) {
    T value;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
    result[i] = convert(value);
  }
  return result;
}

[[noreturn]] void FailType(std::string_view where, const std::string& path, const std::string& name,
                           DType dtype, std::string_view wanted) {
  Fail(where, "{}: tensor '{}' must be of {} type, but is {}", path, Printable(name), wanted,
       NameOf(dtype));
}

}  // namespace

int64_t StoredTensor::size() const { return static_cast<int64_t>(bytes.size()) / SizeOf(dtype); }

std::string StoredTensor::ShapeString() const { return fmt::format("[{}]", fmt::join(shape, ",")); }

SafetensorsFile SafetensorsFile::Open(const std::string& path, std::string_view where) {
  return Parse(ReadFile(path, where), path, where);
}

SafetensorsFile SafetensorsFile::Parse(Bytes bytes, const std::string& name,
                                       std::string_view where) {
  const Origin origin{where, name};
  const uint64_t length = HeaderLength(bytes, origin);
  const std::span<const uint8_t> all = bytes;
  const auto header = all.subspan(kLengthBytes, length);
  const auto data = all.subspan(kLengthBytes + length);
  origin.Require(length > 0 && header[0] == '{',
                 "header must be a JSON object: not a safetensors file");
  const auto json = ParseJson(AsText(header), where, name + ": header");

  SafetensorsFile file;
  std::vector<Entry> entries;
  for (const auto& item : json.items()) {
    if (item.key() != "__metadata__") {
      entries.push_back(ParseEntry(item.key(), item.value(), origin));
      continue;
    }
    origin.Require(item.value().is_object(), "__metadata__ must be an object");
    for (const auto& pair : item.value().items()) {
      origin.Require(pair.value().is_string(), "__metadata__ '{}' must be a string",
                     Printable(pair.key()));
      file.metadata_[pair.key()] = pair.value().get<std::string>();
    }
  }
  CheckLayout(entries, data.size(), origin);
  for (Entry& e : entries)
    file.tensors_[e.name] = {e.dtype, std::move(e.shape), data.subspan(e.begin, e.end - e.begin)};
  file.path_ = name;
  file.where_ = where;
  file.bytes_ = std::move(bytes);  // moving a vector keeps its buffer, so the views stay good
  return file;
}

const StoredTensor& SafetensorsFile::Get(const std::string& name) const {
  const auto found = tensors_.find(name);
  Check(found != tensors_.end(), where_, "{}: tensor '{}' is missing", path_, Printable(name));
  return found->second;
}

std::vector<double> SafetensorsFile::Doubles(const std::string& name) const {
  const StoredTensor& tensor = Get(name);
  switch (tensor.dtype) {
    case DType::kF64:
      return Converted<double>(tensor, [](double x) { return x; });
    case DType::kF32:
      return Converted<float>(tensor, [](float x) { return double{x}; });
    case DType::kF16:
      return Converted<F16>(tensor, [](F16 x) { return double{ToFloat(x)}; });
    case DType::kBF16:
      return Converted<BF16>(tensor, [](BF16 x) { return double{ToFloat(x)}; });
    default:
      FailType(where_, path_, name, tensor.dtype, "a float");
  }
}

std::vector<float> SafetensorsFile::Floats(const std::string& name) const {
  const StoredTensor& tensor = Get(name);
  switch (tensor.dtype) {
    case DType::kF64:
      return Converted<double>(tensor, [&](double x) {
        Check(std::abs(x) <= std::numeric_limits<float>::max() || !std::isfinite(x), where_,
              "{}: tensor '{}' holds {}, which F32 cannot", path_, Printable(name), x);
        return static_cast<float>(x);
      });
    case DType::kF32:
      return Converted<float>(tensor, [](float x) { return x; });
    case DType::kF16:
      return Converted<F16>(tensor, [](F16 x) { return ToFloat(x); });
    case DType::kBF16:
      return Converted<BF16>(tensor, [](BF16 x) { return ToFloat(x); });
    default:
      FailType(where_, path_, name, tensor.dtype, "a float");
  }
}

std::vector<int64_t> SafetensorsFile::Integers(const std::string& name) const {
  const StoredTensor& tensor = Get(name);
  const auto widen = [](auto x) { return static_cast<int64_t>(x); };
  switch (tensor.dtype) {
    case DType::kI64:
      return Converted<int64_t>(tensor, widen);
    case DType::kI32:
      return Converted<int32_t>(tensor, widen);
    case DType::kI16:
      return Converted<int16_t>(tensor, widen);
    case DType::kI8:
      return Converted<int8_t>(tensor, widen);
    case DType::kU8:
    case DType::kBool:
      return Converted<uint8_t>(tensor, widen);
    default:
      FailType(where_, path_, name, tensor.dtype, "an integer");
  }
}

void WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata) {
  const Origin origin{"model", path};
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return SizeOf(a->tensor.dtype) > SizeOf(b->tensor.dtype);
  });
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<std::span<const uint8_t>> parts(1);
  uint64_t offset = 0;
  for (const NamedTensor* named : order) {
    const StoredTensor& t = named->tensor;
    const uint64_t size = SizeInBytes({named->name, t.dtype, t.shape, 0, 0}, origin);
    origin.Require(size == t.bytes.size(), "tensor '{}': {} of shape {} needs {} bytes, but got {}",
                   named->name, NameOf(t.dtype), t.ShapeString(), size, t.bytes.size());
    origin.Require(named->name != "__metadata__" && !header.contains(named->name),
                   "tensor '{}' occurs twice", named->name);
    header[named->name] = {
        {"dtype", NameOf(t.dtype)}, {"shape", t.shape}, {"data_offsets", {offset, offset + size}}};
    offset += size;
    parts.push_back(t.bytes);
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), kLengthBytes);
  parts[0] = AsBytes(text);
  WriteFileAtomic(path, parts);
}

}  // namespace linattn
