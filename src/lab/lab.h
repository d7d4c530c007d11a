#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace linattn {

struct LabOptions {
  bool quick = false;  // smaller sizes, for a first look: under a minute each
  uint64_t seed = 0;
  // Of `swap`: a model file whose attention is softmax; this one comes with the sources.
  std::string model = "models/fashion-softmax.safetensors";
  std::string data;       // what it learned; "" means fashion-mnist
  std::string directory;  // for files that an experiment keeps to itself
  bool quiet = false;     // nothing on standard error
  // Called between the parts of an experiment; what it throws ends it.
  std::function<void(int64_t done, int64_t total, const std::string& what)> progress;
  std::function<void()> check = [] {};  // called often; what it throws ends the experiment
  std::function<int()> signal;          // that asks to stop, or 0: for programs that run meanwhile
};

struct LabPicture {
  std::string name;  // of the file, without ".svg"
  std::string svg;
  std::string caption;
};

// What an experiment found: a paragraph with its figures, pictures, and the figures as JSON text.
struct LabResult {
  std::string paragraph;
  std::vector<LabPicture> pictures;
  std::string figures;
  std::string settings = {};  // as SettingsOf; of results that were saved
  std::string made = {};      // when, by which version, on which machine
};

struct Experiment {
  std::string_view name;      // `linattn lab NAME`
  std::string_view question;  // one line
  LabResult (*run)(const LabOptions&);
};

std::span<const Experiment> AllExperiments();
const Experiment& ExperimentByName(std::string_view name);  // throws Error that lists the known

LabResult RunRetrieval(const LabOptions&);
LabResult RunFeatures(const LabOptions&);
LabResult RunSwap(const LabOptions&);
LabResult RunDenominator(const LabOptions&);
LabResult RunLatency(const LabOptions&);
LabResult RunSpeech(const LabOptions&);

// What decides an experiment's result beside the machine, as one line.
std::string SettingsOf(const Experiment& experiment, const LabOptions& options);

// One page that needs nothing beside it: pictures are inside.
std::string LabPage(std::span<const std::pair<Experiment, LabResult>> results);

// Writes NAME.md, NAME.json and the pictures into `directory`. LoadResult reads them back, so that
// a report need not run again what is there; false if anything is missing.
void SaveResult(const Experiment& experiment, const LabResult& result,
                const std::string& directory);
bool LoadResult(const Experiment& experiment, const std::string& directory, LabResult& result);

}  // namespace linattn
