#pragma once

#include <span>
#include <string>
#include <vector>

#include "data/image_set.h"

namespace linattn {

// A recording and what is said in it.
struct Utterance {
  std::string name;                // within its set; decides on the split
  std::string path;                // of the audio
  std::vector<std::string> units;  // phonemes or characters
  Split split = Split::kTrain;
};

// One that cannot be used.
struct LeftOut {
  std::string name;
  std::string reason;    // of a few: what is counted
  std::string detail{};  // what the reason leaves open, or empty
};

// What counts edits in units of the kind: "phoneme_error_rate", "character_error_rate".
std::string ErrorRateName(const std::string& unit_kind);

// "name: reason: detail"
std::string ToString(const LeftOut& left_out);
// "3 left out (2 no words, 1 too short)", most frequent first; of none "".
std::string CountReasons(std::span<const LeftOut> left_out);

struct SpeechSet {
  std::vector<Utterance> utterances;  // sorted by name
  std::vector<LeftOut> left_out;      // no words, numbers that are not spelled, text that is not
                                      // UTF-8, words that the dictionary lacks
};

struct SpeechSource {
  // "asterisk" or "asterisk:DIR"   the recorded English prompts of the Debian packages
  //                                asterisk-core-sounds-en-wav and asterisk-core-sounds-en
  // "wav:DIR"                      DIR/WORD/*.wav; or DIR/D_*.wav, D a digit, as spoken-digit sets
  //                                have it ("7_jackson_0.wav")
  // any other                      a manifest (manifest.h)
  std::string spec;
  std::string unit_kind;   // "phonemes" | "characters"
  std::string dictionary;  // path; phonemes only
};

// Splits: the manifest's where it says so; else by a hash of the name (FNV-1a, modulo 10): 0 test,
// 1 validation, the rest train. In a manifest the name is the path as it is written there, so that
// the same manifest is split alike wherever it lies and however its own path is spelled. Throws
// Error if the source is not there or gives no utterance.
SpeechSet LoadSpeech(const SpeechSource& source);

inline constexpr const char* kDictionary =
    "/usr/share/pocketsphinx/model/en-us/cmudict-en-us.dict";  // of pocketsphinx-en-us

}  // namespace linattn
