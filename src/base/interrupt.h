#pragma once

namespace linattn {

// From now on Ctrl-C and SIGTERM ask the program to stop: the first writes a line to standard error
// and sets a flag, the second ends the program at once.
void InstallInterruptHandlers();
// The signal that asked, or 0. A program that stops for it exits with 128 + signal, as shells do.
int InterruptSignal();

// Threads that wait sleep instead of spinning: on a machine that others use too, spinning makes
// short parallel regions tens of times slower. OpenMP reads this before main, so the program starts
// once more with it (a few milliseconds), unless the user has chosen (OMP_WAIT_POLICY or
// GOMP_SPINCOUNT).
void SleepWhenWaiting(char** argv);

}  // namespace linattn
