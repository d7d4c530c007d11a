#include "bench/machine.h"

#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace linattn::bench {
namespace {

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? "unknown" : line.substr(colon + 2);
  }
  return "unknown";
}

double CacheBytes(int name, double otherwise) {
  const long bytes = sysconf(name);
  return bytes > 0 ? static_cast<double>(bytes) : otherwise;
}

bool quickly = false;

Machine Measure(int threads) {
  Machine machine;
  if (!quickly) MeasureFmaPeak();  // threads that have just started may still share a core
  machine.peak = MeasureMachinePeak(threads, quickly ? 0.1 : 1);
  machine.l2_bytes = threads * CacheBytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20);
  machine.l3_bytes = CacheBytes(_SC_LEVEL3_CACHE_SIZE, 1 << 25);
  machine.cpu = CpuName();
  machine.compiler = "g++ " __VERSION__;
  machine.version = LINATTN_VERSION;
  return machine;
}

struct Level {
  double gbps;
  std::string_view name;
};

Level LevelOf(const Machine& machine, double footprint) {
  if (footprint <= machine.l2_bytes) return {machine.peak.l2_gbps, "L2"};
  if (footprint <= machine.l3_bytes) return {machine.peak.l3_gbps, "L3"};
  return {machine.peak.memory_gbps, "memory"};
}

}  // namespace

const Machine& ThisMachine() {
  static Machine machine;
  const int threads = omp_get_max_threads();
  if (machine.peak.threads != threads) machine = Measure(threads);
  return machine;
}

void MeasureMachineQuickly() { quickly = true; }

nlohmann::ordered_json ToJson(const Machine& m) {
  return {{"cpu", m.cpu},
          {"threads", m.peak.threads},
          {"f32_peak_gflops", m.peak.float32_gflops},
          {"bf16_peak_gflops", m.peak.bfloat16_gflops},
          {"int8_peak_gops", m.peak.int8_gops},
          {"l2_gbps", m.peak.l2_gbps},
          {"l3_gbps", m.peak.l3_gbps},
          {"memory_gbps", m.peak.memory_gbps},
          {"compiler", m.compiler},
          {"version", m.version}};
}

std::string Describe(const Machine& m) {
  return fmt::format(
      "{}, {} threads; measured now: float32 {:.0f}, bfloat16 {:.0f} GFLOP/s, int8 {:.0f} Gop/s; "
      "reading L2 {:.0f}, L3 {:.0f}, memory {:.0f} GB/s",
      m.cpu, m.peak.threads, m.peak.float32_gflops, m.peak.bfloat16_gflops, m.peak.int8_gops,
      m.peak.l2_gbps, m.peak.l3_gbps, m.peak.memory_gbps);
}

Work& Work::operator+=(const Work& more) {
  f32 += more.f32, bf16 += more.bf16, int8 += more.int8;
  weight_bytes += more.weight_bytes;
  state_bytes += more.state_bytes;
  state_footprint += more.state_footprint;
  return *this;
}

Roof RoofOf(const Machine& machine, const Work& work) {
  const MachinePeak& peak = machine.peak;
  // A type that the machine has no instructions for runs as float32.
  const auto rate = [&](double own) { return (own > 0 ? own : peak.float32_gflops) * 1e9; };
  const double compute = work.f32 / rate(peak.float32_gflops) +
                         work.bf16 / rate(peak.bfloat16_gflops) + work.int8 / rate(peak.int8_gops);
  const Level weights = LevelOf(machine, work.weight_bytes);
  const Level states = LevelOf(machine, work.weight_bytes + work.state_footprint);
  const double weight_s = work.weight_bytes / (weights.gbps * 1e9);
  const double state_s = work.state_bytes / (states.gbps * 1e9);
  if (compute >= weight_s + state_s) return {compute, "compute"};
  return {weight_s + state_s, weight_s >= state_s ? weights.name : states.name};
}

}  // namespace linattn::bench
