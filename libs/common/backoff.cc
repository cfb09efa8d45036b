#include "libs/common/backoff.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace pageferry {
namespace {

uint64_t SplitMix64(uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  uint64_t mixed = state;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBU;
  return mixed ^ (mixed >> 31);
}

}  // namespace

uint64_t RandomSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

Backoff::Backoff(const Options& options, uint64_t seed) : options_(options), random_state_(seed) {
  options_.initial = std::max(options_.initial, absl::Nanoseconds(1));
  options_.max = std::max(options_.max, options_.initial);
  if (!(options_.multiplier >= 1.0)) options_.multiplier = 1.0;
  Reset();
}

absl::Duration Backoff::Next() {
  ceiling_ = std::min(ceiling_ * options_.multiplier, options_.max);
  const double fraction = static_cast<double>(SplitMix64(random_state_) >> 11) * 0x1.0p-53;
  return ceiling_ * (0.5 + 0.5 * fraction);
}

void Backoff::Reset() { ceiling_ = options_.initial; }

}  // namespace pageferry
