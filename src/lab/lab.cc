#include "lab/lab.h"

#include <fmt/format.h>
#include <omp.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/plot.h"

namespace linattn {
namespace {

constexpr std::array kExperiments = {
    Experiment{"retrieval", "How many similar items can a fixed-size state tell apart?",
               RunRetrieval},
    Experiment{"features", "At which length do C features cost less than softmax?", RunFeatures},
    Experiment{"swap", "What does a trained softmax model lose when its attention is swapped?",
               RunSwap},
    Experiment{"denominator", "What happens where queries hardly overlap with the stored keys?",
               RunDenominator},
    Experiment{"latency", "Where do the paper's thousands of times come from?", RunLatency},
    Experiment{"speech", "What does linear attention cost a speech recogniser?", RunSpeech},
};

std::string Section(const Experiment& experiment, const LabResult& result) {
  std::string html = fmt::format(
      "<section id=\"{0}\">\n<h2>{0}</h2>\n<p><em>{1}</em></p>\n<p>{2}</p>\n", experiment.name,
      EscapeMarkup(experiment.question), EscapeMarkup(result.paragraph));
  for (const LabPicture& picture : result.pictures) {
    html += fmt::format(
        "<figure><div role=\"img\" aria-label=\"{0}\">{1}</div><figcaption>{0}</figcaption>"
        "</figure>\n",
        EscapeMarkup(picture.caption), picture.svg);
  }
  html += fmt::format("<p class=\"made\">{}. {}.</p>\n", EscapeMarkup(result.settings),
                      EscapeMarkup(result.made));
  return html +
         fmt::format("<details><summary>figures</summary><pre>{}</pre></details>\n</section>\n",
                     EscapeMarkup(result.figures));
}

}  // namespace

std::span<const Experiment> AllExperiments() { return kExperiments; }

const Experiment& ExperimentByName(std::string_view name) {
  std::string known;
  for (const Experiment& experiment : kExperiments) {
    if (experiment.name == name) return experiment;
    known += (known.empty() ? "" : ", ") + std::string(experiment.name);
  }
  Fail("lab", "an experiment must be one of {} or all, but is '{}'", known, name);
}

std::string LabPage(std::span<const std::pair<Experiment, LabResult>> results) {
  std::string body, contents;
  for (const auto& [experiment, result] : results) {
    contents += fmt::format("<li><a href=\"#{0}\">{0}</a>: {1}</li>\n", experiment.name,
                            EscapeMarkup(experiment.question));
    body += Section(experiment, result);
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<title>linattn lab</title>\n"
      "<style>body{{font:16px/1.5 sans-serif;max-width:52em;margin:2em auto;padding:0 1em}}"
      "figure{{margin:1.5em 0;overflow-x:auto}}svg{{width:100%;min-width:40em;height:auto}}"
      "figcaption,.made{{color:#555}}.made{{font-size:smaller}}"
      "pre{{overflow-x:auto;background:#f4f4f4;padding:1em}}</style></head>\n"
      "<body>\n<h1>Where linear attention breaks, and what it "
      "buys</h1>\n<ul>\n{}</ul>\n{}</body></html>\n",
      contents, body);
}

std::string SettingsOf(const Experiment& experiment, const LabOptions& options) {
  std::string settings =
      fmt::format("{}, seed {}, {} threads", options.quick ? "quick sizes" : "full sizes",
                  options.seed, omp_get_max_threads());
  if (experiment.run != RunSwap) return settings;
  std::error_code error;
  const auto bytes = std::filesystem::file_size(options.model, error);
  return fmt::format("{}, model {} ({} bytes), data {}", settings, options.model, error ? 0 : bytes,
                     options.data.empty() ? "fashion-mnist" : options.data);
}

void SaveResult(const Experiment& experiment, const LabResult& result,
                const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  Check(!error, "lab", "the directory '{}' must be one that can be made, but: {}", directory,
        error.message());
  std::string text =
      fmt::format("# {}\n\n{}\n\n{}\n\n{}. {}.\n", experiment.name, experiment.question,
                  result.paragraph, result.settings, result.made);
  nlohmann::json pictures = nlohmann::json::array();
  for (const LabPicture& picture : result.pictures) {
    WriteFileAtomic(directory + "/" + picture.name + ".svg", picture.svg);
    text += fmt::format("\n![{}]({}.svg)\n\n{}\n", picture.caption, picture.name, picture.caption);
    pictures.push_back({{"name", picture.name}, {"caption", picture.caption}});
  }
  const std::string stem = directory + "/" + std::string(experiment.name);
  WriteFileAtomic(stem + ".md", text);
  const nlohmann::json json = {{"paragraph", result.paragraph},
                               {"settings", result.settings},
                               {"made", result.made},
                               {"pictures", pictures},
                               {"figures", nlohmann::json::parse(result.figures)}};
  WriteFileAtomic(stem + ".json", json.dump(1) + "\n");  // last: it says that all is there
}

bool LoadResult(const Experiment& experiment, const std::string& directory, LabResult& result) {
  const std::string path = directory + "/" + std::string(experiment.name) + ".json";
  if (!std::filesystem::exists(path)) return false;
  const auto json = nlohmann::json::parse(AsText(ReadFile(path, "lab")), nullptr, false);
  if (json.is_discarded() || !json.contains("made")) return false;
  result = {
      json.at("paragraph"), {}, json.at("figures").dump(1), json.at("settings"), json.at("made")};
  for (const auto& picture : json.at("pictures")) {
    const std::string name = picture.at("name"), svg = directory + "/" + name + ".svg";
    if (!std::filesystem::exists(svg)) return false;
    result.pictures.push_back(
        {name, std::string(AsText(ReadFile(svg, "lab"))), picture.at("caption")});
  }
  return true;
}

}  // namespace linattn
