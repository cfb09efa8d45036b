#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace pageferry {

/// A seed that differs for each call and each process. The only source of randomness for seeds, so
/// that tests can replay.
uint64_t RandomSeed();

/// Says how long to wait before the next try; whether to try is the caller's matter.
///
/// Thread-compatible. The n-th delay (from 0) is uniform in [ceiling / 2, ceiling], where ceiling
/// is initial * multiplier^(n+1) up to `max`: all delays lie in [initial, max] for a multiplier of
/// 2, and callers that failed together come back spread out, from the first try on.
class Backoff {
 public:
  struct Options {
    absl::Duration initial = absl::Milliseconds(100);  ///< above 0
    absl::Duration max = absl::Seconds(30);            ///< at least `initial`
    double multiplier = 2.0;                           ///< at least 1
  };

  /// Options out of range are moved to the nearest good value.
  Backoff(const Options& options, uint64_t seed);

  /// The delay before the next try.
  absl::Duration Next();

  /// Call on success: the next delay is short again.
  void Reset();

 private:
  Options options_;
  absl::Duration ceiling_;
  uint64_t random_state_;
};

}  // namespace pageferry
