#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/common/clock.h"
#include "libs/common/ids.h"
#include "libs/common/scheduler.h"

namespace pageferry {

/// A clock and its scheduler for tests: time moves, and tasks run, only inside `Advance`.
///
/// Thread-safe. Starts at 1,000 s of monotonic time and at 2026-01-01 00:00 UTC. Tasks run on the
/// advancing thread in the order (deadline, RunAt call); each sees its own deadline as the time, so
/// a task that sets the next timer from `Now()` behaves as with a real clock. A task may schedule,
/// cancel and advance.
class FakeClock final : public Clock, public Scheduler {
 public:
  FakeClock() = default;

  MonotonicTime Now() const override;
  absl::Time WallNow() const override;

  TaskId RunAt(MonotonicTime deadline, absl::AnyInvocable<void()> task) override;
  bool Cancel(TaskId id) override;
  bool CancelAndWait(TaskId id) override;

  /// Moves the time on and runs all that falls due up to and at the new time, also what such tasks
  /// schedule. Returns how many tasks this call ran. `duration` below 0 counts as 0.
  size_t Advance(absl::Duration duration);
  /// As Advance; a time in the past moves nothing and runs what is due.
  size_t AdvanceTo(MonotonicTime time);

  /// Moves the wall clock alone, as an operator who sets the date does.
  void JumpWall(absl::Duration duration);

  /// Tasks not yet run.
  size_t pending() const;
  /// When the next task falls due; InfiniteFuture when there is none.
  MonotonicTime next_deadline() const;

 private:
  using Key = std::pair<MonotonicTime, TaskId>;

  mutable absl::Mutex mutex_;
  MonotonicTime now_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::FromNanoseconds(1'000'000'000'000);
  absl::Duration wall_offset_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<TaskId, MonotonicTime> deadlines_ ABSL_GUARDED_BY(mutex_);
  std::vector<TaskId> running_ ABSL_GUARDED_BY(mutex_);
  TaskId last_id_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pageferry
