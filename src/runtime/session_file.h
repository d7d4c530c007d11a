#pragma once

#include <cstdint>
#include <string>

#include "runtime/session.h"

namespace linattn {

// A sequence's memory as a file (safetensors): its state and outputs, and in the metadata the
// model's fingerprint, the token count, the capacity and a checksum over all of them. Written
// atomically.
void SaveState(const Session& session, int64_t slot, const std::string& path);

// Puts it back, bit for bit. Throws Error naming the file, and changes nothing, if it is cut,
// damaged, not a state, of another model, or of another capacity where the state's size depends on
// it (cache mixers).
void LoadState(Session& session, int64_t slot, const std::string& path);

}  // namespace linattn
