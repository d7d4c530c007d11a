#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/session.h"

namespace linattn {

// What a verb needs beside a sequence's memory to go on exactly as if it had never stopped: the
// symbols that a penalty counts, samples of sound that fill no frame yet. The checksum covers it.
struct StateExtras {
  std::map<std::string, std::string> notes;           // of the file's metadata, as "note.KEY"
  std::map<std::string, std::vector<float>> tensors;  // of the file's, as "extra.KEY"
};

// A sequence's memory as a file (safetensors): its state and outputs, and in the metadata the
// model's fingerprint, the token count, the capacity and a checksum over all of them and the
// extras. Written atomically.
void SaveState(const Session& session, int64_t slot, const std::string& path,
               const StateExtras& extras = {});

// Puts it back, bit for bit. Throws Error naming the file, and changes nothing, if it is cut,
// damaged, not a state, of another model, or of another capacity where the state's size depends on
// it (cache mixers).
StateExtras LoadState(Session& session, int64_t slot, const std::string& path);

}  // namespace linattn
