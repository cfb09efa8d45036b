#pragma once

#include "absl/time/time.h"
#include "libs/common/ids.h"

namespace pageferry {

/// The only source of time. Pure code takes a `MonotonicTime` as an argument instead.
///
/// Thread-safe. Owns nothing.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;

  /// For leases, timeouts and intervals. Never goes back; not changed by setting the date.
  virtual MonotonicTime Now() const = 0;

  /// For people (logs, traces) and certificates only. May jump.
  virtual absl::Time WallNow() const = 0;
};

/// std::chrono::steady_clock and the system's date.
class RealClock final : public Clock {
 public:
  /// The process's clock; lives until the process ends. Never null.
  static RealClock& Get();

  MonotonicTime Now() const override;
  absl::Time WallNow() const override;

 private:
  RealClock() = default;
};

}  // namespace pageferry
