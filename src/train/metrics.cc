#include "train/metrics.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace linattn {
namespace {

// The lines of `text` that say something about steps up to `step`.
std::string KeepUpTo(std::string_view text, int64_t step) {
  std::string kept;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.value("step", step + 1) <= step) kept += line;
  }
  return kept;
}

// Repairs the file, so that it can be appended to.
std::string PrepareLines(const std::string& directory, int64_t step) {
  const std::string path = directory + "/metrics.jsonl";
  if (std::filesystem::exists(path)) {
    const Bytes bytes = ReadFile(path);
    const std::string kept = KeepUpTo(AsText(bytes), step);
    if (kept.size() != bytes.size()) WriteFileAtomic(path, kept);
  }
  return path;
}

uint32_t BigEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes.substr(0, 4)) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

}  // namespace

Metrics::Metrics(const std::string& directory, int64_t step)
    : lines_(PrepareLines(directory, step), std::ios::app), events_(directory, step + 1) {
  Check(lines_.good(), "train", "{}/metrics.jsonl must be writable", directory);
}

void Metrics::Add(int64_t step, std::string_view kind, const std::vector<Value>& values) {
  nlohmann::ordered_json json = {{"step", step}, {"kind", kind}};
  for (const Value& value : values) {
    json[std::string(value.name)] = value.value;
    events_.AddScalar(step, fmt::format("{}/{}", kind, value.name), value.value);
  }
  lines_ << json.dump() << std::endl;
  Check(lines_.good(), "train", "metrics.jsonl must be writable, but a write failed");
}

void Metrics::AddPicture(int64_t step, const std::string& path) {
  const Bytes png = ReadFile(path);
  constexpr size_t kSizes = 16;  // where IHDR says width and height
  if (png.size() < kSizes + 8) return;
  const std::string_view text = AsText(png);
  events_.AddPng(step, "samples", BigEndian(text.substr(kSizes + 4)),
                 BigEndian(text.substr(kSizes)), text);
}

}  // namespace linattn
