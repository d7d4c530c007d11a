#pragma once

namespace linattn {

// Whether the machine multiplies pairs of bfloat16 (AVX512_BF16: vdpbf16ps) and quads of int8
// (AVX512_VNNI: vpdpbusd) in one instruction. Highway 1.0.3 has no target that says so.
struct NativeDots {
  bool bf16 = false, int8 = false;
};
NativeDots MachineDots();

// For tests: what MachineDots answers, as far as the machine has it; {true, true} restores it.
void SetDotsForTest(NativeDots allowed);

}  // namespace linattn
