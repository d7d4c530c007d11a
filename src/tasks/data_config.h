#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace linattn {

// What a task learns from. Travels in the run's config as the table [data].
struct DataConfig {
  // images: a data set as LoadImages (data/image_set.h) spells it; text: a file; what is made up
  // has none
  std::string source = "fashion-mnist";
  bool full_train = false;  // train on the validation images too; the test set is evaluated then
  int64_t limit = 0;        // training images at most; 0: all
  bool flip = false;        // half of the images are mirrored
  std::string vocabulary;   // text: a SentencePiece model file; empty: bytes
  int64_t pairs = 64;       // recall: of key and value, at most

  // speech: source as LoadSpeech (data/speech_set.h) spells it
  std::string dictionary = "/usr/share/pocketsphinx/model/en-us/cmudict-en-us.dict";
  std::string unalignable = "skip";  // utterances too short for their labels: named, or "refuse"
  // SpecAugment's masks: how many, of at most so many frames or channels each.
  int64_t time_masks = 2, time_mask = 30, mel_masks = 2, mel_mask = 8;
};

// False if the task's examples are made up.
bool ReadsData(std::string_view task);

}  // namespace linattn
