#pragma once

namespace linattn::cli {

// The verbs that need LibTorch live in a program of their own, linattn-train. If argv names one of
// them, before or after the common options, this replaces the process by it with the same
// arguments. Throws Error if there is no such program beside this one.
void DispatchTraining(int argc, char** argv);
bool HasTrainingProgram();

}  // namespace linattn::cli
