#include "libs/common/clock.h"

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"

namespace pageferry {

RealClock& RealClock::Get() {
  static RealClock* const clock = new RealClock;  // NOLINT: never destroyed, used at exit
  return *clock;
}

MonotonicTime RealClock::Now() const {
  const auto since_origin = std::chrono::steady_clock::now().time_since_epoch();
  return MonotonicTime::FromNanoseconds(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since_origin).count());
}

absl::Time RealClock::WallNow() const { return absl::Now(); }

}  // namespace pageferry
