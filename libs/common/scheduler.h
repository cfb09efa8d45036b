#pragma once

#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/clock.h"
#include "libs/common/ids.h"
#include "libs/common/steady_condition.h"

namespace pageferry {

/// Names one scheduled task; never used twice by one scheduler. 0 names none.
using TaskId = StrongNumber<struct TaskIdTag, int64_t>;

/// Runs tasks at times of a `Clock`. The only maker of timers.
///
/// Thread-safe. Owns each task until it has run or was cancelled. Tasks run one at a time in the
/// order (deadline, RunAt call) with no lock held, must be short and must not block: hand work on.
class Scheduler {
 public:
  Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  virtual ~Scheduler() = default;

  /// Runs `task` once at or soon after `deadline`, never inside this call. A deadline in the past
  /// means soon; InfiniteFuture means never (it can still be cancelled).
  virtual TaskId RunAt(MonotonicTime deadline, absl::AnyInvocable<void()> task) = 0;

  /// Drops a task that has not started. False if it is unknown, has run or is running now: then it
  /// may still be in progress when this returns. May be called from a task.
  virtual bool Cancel(TaskId id) = 0;

  /// As Cancel, but when it returns the task is not in progress: what the task refers to may be
  /// destroyed. Not from inside that task, and with no lock held that the task takes: deadlock.
  virtual bool CancelAndWait(TaskId id) = 0;
};

/// A scheduler with one thread.
///
/// The destructor waits for the task in progress, drops the rest unrun and joins the thread; not to
/// be called from a task. Borrows `clock`, which must count as `RealClock` does and outlive it.
class RealScheduler final : public Scheduler {
 public:
  explicit RealScheduler(const Clock& clock);
  ~RealScheduler() override;

  TaskId RunAt(MonotonicTime deadline, absl::AnyInvocable<void()> task) override;
  bool Cancel(TaskId id) override;
  bool CancelAndWait(TaskId id) override;

 private:
  using Key = std::pair<MonotonicTime, TaskId>;

  void Loop();
  absl::AnyInvocable<void()> TakeLocked(TaskId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  absl::Mutex mutex_;
  SteadyCondition changed_;
  std::map<Key, absl::AnyInvocable<void()>> pending_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<TaskId, MonotonicTime> deadlines_ ABSL_GUARDED_BY(mutex_);
  TaskId last_id_ ABSL_GUARDED_BY(mutex_);
  TaskId running_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace pageferry
