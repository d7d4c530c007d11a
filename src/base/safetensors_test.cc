#include "base/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

using testing::HasSubstr;

Bytes WithHeader(std::string_view json, size_t data_bytes) {
  const uint64_t length = json.size();
  Bytes bytes(8 + json.size() + data_bytes);
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, json.data(), json.size());
  return bytes;
}

std::string MessageOf(Bytes bytes) {
  try {
    SafetensorsFile::Parse(std::move(bytes), "run/model.safetensors");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string HeaderMessage(std::string_view json, size_t data_bytes = 8) {
  return MessageOf(WithHeader(json, data_bytes));
}

// head.weight [256,40] F32 = 40960 bytes behind embed.weight of 16 bytes.
Bytes GoodFile() {
  return WithHeader(R"({"embed.weight":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                    R"("head.weight":{"dtype":"F32","shape":[256,40],"data_offsets":[16,40976]}})",
                    40976);
}

// G1: cut at 0, 4, 8, header/2, header end, end-1.
TEST(Safetensors, CutFilesAreNamedWithSizes) {
  const Bytes good = GoodFile();
  uint64_t length;
  std::memcpy(&length, good.data(), 8);
  const auto cut = [&](size_t size) { return MessageOf(Bytes(good.begin(), good.begin() + size)); };
  const std::string where = "[model] run/model.safetensors: ";
  EXPECT_EQ(cut(good.size()), "no error");
  EXPECT_EQ(cut(0), where +
                        "is cut short: a safetensors file begins with 8 bytes of header length, "
                        "file ends after 0");
  EXPECT_THAT(cut(4), HasSubstr("cut short: a safetensors file begins with 8 bytes"));
  EXPECT_EQ(cut(8),
            where + fmt::format("header is cut short: needs {} bytes, file ends after 0", length));
  EXPECT_EQ(cut(8 + length / 2),
            where + fmt::format("header is cut short: needs {} bytes, file ends after {}", length,
                                length / 2));
  EXPECT_EQ(cut(8 + length),
            where + "tensor 'embed.weight' is cut short: needs 16 bytes, file ends after 0");
  EXPECT_EQ(cut(8 + length + 16 + 8192),
            where + "tensor 'head.weight' is cut short: needs 40960 bytes, file ends after 8192");
  EXPECT_EQ(cut(good.size() - 1),
            where + "tensor 'head.weight' is cut short: needs 40960 bytes, file ends after 40959");
}

// Every cut is refused, not only the six.
TEST(Safetensors, NoPrefixOfAFileIsAFile) {
  const Bytes good = WithHeader(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 16);
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_THAT(MessageOf(Bytes(good.begin(), good.begin() + size)), HasSubstr("cut short"))
        << size;
}

// G2
TEST(Safetensors, LfsPointersAndAbsurdLengthsAreRecognised) {
  const std::string_view pointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
      "size 12345\n";
  const auto bytes = AsBytes(pointer);
  EXPECT_THAT(MessageOf(Bytes(bytes.begin(), bytes.end())),
              HasSubstr("is a Git LFS pointer of 130 bytes, not the file itself (12345 bytes)"));
  Bytes huge(64, 0xFF);
  EXPECT_THAT(MessageOf(huge), HasSubstr("but is 18446744073709551615"));
  const uint64_t terabyte = uint64_t{1} << 40;
  std::memcpy(huge.data(), &terabyte, 8);
  EXPECT_THAT(MessageOf(huge), HasSubstr("but is 1099511627776"));
}

TEST(Safetensors, HeadersAreChecked) {
  const auto entry = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return HeaderMessage(fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})",
                                     dtype, shape, offsets));
  };
  EXPECT_EQ(entry("F32", "[2]", "[0,8]"), "no error");
  EXPECT_EQ(entry("F32", "[3]", "[0,8]"),
            "[model] run/model.safetensors: tensor 'w': F32 of shape [3] needs 12 bytes, but "
            "data_offsets are [0,8]");
  EXPECT_THAT(entry("F32", "[2]", "[8,0]"), HasSubstr("data_offsets are [8,0]"));
  EXPECT_THAT(entry("F32", "[4294967296,4294967296]", "[0,8]"), HasSubstr("overflows 64 bits"));
  EXPECT_THAT(entry("F32", "[-1]", "[0,8]"), HasSubstr("but one is -1"));
  EXPECT_THAT(entry("F32", "[2.0]", "[0,8]"), HasSubstr("but one is 2.0"));
  EXPECT_THAT(entry("F32", "[18446744073709551615]", "[0,8]"), HasSubstr("but one is 1844674"));
  EXPECT_THAT(entry("F32", "2", "[0,8]"), HasSubstr("shape must be a list"));
  EXPECT_THAT(entry("F32", "[2]", "[0,4,8]"), HasSubstr("must be [begin, end]"));
  EXPECT_THAT(HeaderMessage("[]"), HasSubstr("header must be a JSON object"));
  EXPECT_THAT(HeaderMessage("{\"w\":1}"), HasSubstr("tensor 'w' must be an object"));
  EXPECT_THAT(HeaderMessage("{\"w\":{}}"), HasSubstr("tensor 'w' has no dtype"));
  EXPECT_THAT(HeaderMessage("{\"w\""), HasSubstr("header is not valid JSON"));
  EXPECT_THAT(HeaderMessage(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})"),
              HasSubstr("tensor 'w' has the unknown key 'x'"));
  EXPECT_THAT(HeaderMessage(R"({"__metadata__":{"a":1}})"), HasSubstr("'a' must be a string"));
  EXPECT_THAT(HeaderMessage(std::string(60, '[').insert(0, "{\"w\":")), HasSubstr("nested deeper"));
}

TEST(Safetensors, NamesMustBeUnique) {
  EXPECT_THAT(HeaderMessage(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                            R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
              HasSubstr("has the name 'w' twice"));
}

TEST(Safetensors, LayoutCoversTheDataExactly) {
  const auto two = [](int b0, int e0, int b1, int e1, size_t data) {
    return HeaderMessage(
        fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                    R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                    e0 - b0, b0, e0, e1 - b1, b1, e1),
        data);
  };
  EXPECT_EQ(two(0, 16, 16, 24, 24), "no error");
  EXPECT_EQ(two(8, 24, 0, 8, 24), "no error");
  EXPECT_THAT(two(0, 16, 8, 24, 24),
              HasSubstr("'a' and 'b' overlap: the first ends at byte 16, the second begins at 8"));
  EXPECT_THAT(two(0, 8, 16, 24, 24),
              HasSubstr("bytes 8 to 16 before tensor 'b' belong to no tensor"));
  EXPECT_THAT(two(0, 8, 8, 16, 20),
              HasSubstr("4 bytes follow the last tensor, which ends at byte 16"));
  EXPECT_EQ(two(0, 0, 0, 8, 8), "no error");  // an empty tensor takes no room
}

// G10: F64, F32, F16, BF16, I64 and an unsupported type, one tensor each.
TEST(Safetensors, FloatTypesWidenExactly) {
  const TemporaryDirectory directory;
  const std::string path = directory / "types.safetensors";
  const std::vector<double> f64 = {1.0 / 3, -2};
  const std::vector<float> f32 = {0.1f, 65504.5f};
  const std::vector<F16> f16 = {{0x3C00}, {0x7BFF}, {0x0001}, {0xFC00}};
  const std::vector<BF16> bf16 = {{0x3F80}, {0x7F80}, {0x0001}, {0x7FC0}};
  const std::vector<int64_t> i64 = {-5};
  const NamedTensor tensors[] = {ToStore<BF16>("bf16", {2, 2}, bf16), ToStore<F16>("f16", {4}, f16),
                                 ToStore<float>("f32", {2}, f32), ToStore<double>("f64", {2}, f64),
                                 ToStore<int64_t>("i64", {}, i64)};
  WriteSafetensors(path, tensors, {{"note", "a"}});
  const auto file = SafetensorsFile::Open(path);
  EXPECT_EQ(file.metadata().at("note"), "a");
  EXPECT_EQ(file.Get("bf16").shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(file.Doubles("f64"), f64);
  EXPECT_EQ(file.Floats("f64"), (std::vector<float>{1.0f / 3, -2}));
  EXPECT_EQ(file.Floats("f32"), f32);
  EXPECT_EQ(file.Doubles("f32"), (std::vector<double>{0.1f, 65504.5}));
  EXPECT_EQ(file.Floats("f16"),
            (std::vector<float>{1, 65504, 0x1p-24f, -std::numeric_limits<float>::infinity()}));
  const auto wide = file.Floats("bf16");
  EXPECT_EQ(wide[0], 1.0f);
  EXPECT_EQ(wide[1], std::numeric_limits<float>::infinity());
  EXPECT_EQ(wide[2], 0x1p-133f);
  EXPECT_TRUE(std::isnan(wide[3]));
  EXPECT_EQ(file.Integers("i64"), i64);
  EXPECT_TRUE(file.Get("i64").shape.empty());
  EXPECT_THROW(file.Floats("i64"), Error);
  EXPECT_THROW(file.Integers("f32"), Error);
  for (const std::string_view unsupported : {"F8_E4M3", "F8_E5M2", "U64", "F4", "f32"})
    EXPECT_THAT(HeaderMessage(fmt::format(
                    R"({{"w":{{"dtype":"{}","shape":[8],"data_offsets":[0,8]}}}})", unsupported)),
                HasSubstr(fmt::format("tensor 'w': dtype {} is not supported (only F64, F32, F16, "
                                      "BF16, I64, I32, I16, I8, U8, BOOL)",
                                      unsupported)));
}

TEST(Safetensors, DoublesThatFloatCannotHoldAreRefused) {
  const TemporaryDirectory directory;
  const std::vector<double> values = {1e300};
  const NamedTensor tensors[] = {ToStore<double>("w", {1}, values)};
  WriteSafetensors(directory / "a", tensors);
  EXPECT_THROW(SafetensorsFile::Open(directory / "a").Floats("w"), Error);
}

TEST(Safetensors, WriterRefusesWrongSizesAndTwins) {
  const TemporaryDirectory directory;
  const std::vector<float> values = {1, 2};
  const NamedTensor wrong[] = {ToStore<float>("w", {3}, values)};
  EXPECT_THROW(WriteSafetensors(directory / "a", wrong), Error);
  const NamedTensor twins[] = {ToStore<float>("w", {2}, values), ToStore<float>("w", {2}, values)};
  EXPECT_THROW(WriteSafetensors(directory / "a", twins), Error);
  EXPECT_THROW(SafetensorsFile::Open(directory / "a"), Error);
}

TEST(Safetensors, DataIsAlignedAndWiderElementsComeFirst) {
  const TemporaryDirectory directory;
  const std::vector<uint8_t> bytes = {1, 2, 3};
  const std::vector<double> doubles = {4};
  const NamedTensor tensors[] = {ToStore<uint8_t>("b", {3}, bytes),
                                 ToStore<double>("d", {1}, doubles)};
  WriteSafetensors(directory / "a", tensors);
  const Bytes file = ReadFile(directory / "a");
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  double first;
  std::memcpy(&first, file.data() + 8 + length, 8);
  EXPECT_EQ(first, 4);
}

TEST(Safetensors, MissingTensorsAndFilesAreNamed) {
  const auto file = SafetensorsFile::Parse(GoodFile(), "a.safetensors");
  EXPECT_TRUE(file.Has("head.weight"));
  try {
    file.Floats("nothing");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[model] a.safetensors: tensor 'nothing' is missing");
  }
  EXPECT_THROW(SafetensorsFile::Open("/no/such/file"), Error);
}

}  // namespace
}  // namespace linattn
