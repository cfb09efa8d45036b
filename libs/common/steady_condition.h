#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/ids.h"

namespace pageferry {

/// A condition variable for `absl::Mutex` whose deadlines follow the monotonic clock.
/// `absl::CondVar` and `Mutex::AwaitWithTimeout` of this Abseil release count on the wall clock, so
/// that setting the date back by an hour prolongs a wait by an hour.
///
/// Thread-safe. Wake-ups may be spurious: wait in a loop.
class SteadyCondition {
 public:
  /// Waits, with `mutex` released, until notified or until `RealClock` reads `deadline`.
  /// False once the deadline has passed.
  bool WaitUntil(absl::Mutex& mutex, MonotonicTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{mutex};
    if (deadline == MonotonicTime::InfiniteFuture()) {
      condition_.wait(lockable);
      return true;
    }
    const std::chrono::steady_clock::time_point until{
        std::chrono::nanoseconds(std::max<int64_t>(deadline.nanoseconds(), 0))};
    return condition_.wait_until(lockable, until) == std::cv_status::no_timeout;
  }

  void NotifyAll() { condition_.notify_all(); }

 private:
  struct Lockable {
    absl::Mutex& mutex;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }      // NOLINT: std's name
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }  // NOLINT: std's name
  };

  std::condition_variable_any condition_;
};

}  // namespace pageferry
