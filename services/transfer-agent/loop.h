#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "libs/common/ids.h"
#include "libs/common/scheduler.h"

namespace pageferry::agent {

/// The agent's serialising thread, with time. All that decides runs on it: the core, and the
/// classes that say "loop-confined", which need no lock for that. gRPC's reactions, timers and
/// workers only post to it.
///
/// Thread-safe.
class Loop {
 public:
  Loop() = default;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  virtual ~Loop() = default;

  /// Runs `task` on the loop, after those posted before; never inside this call. Once the loop has
  /// stopped, tasks are destroyed unrun.
  virtual void Post(absl::AnyInvocable<void()> task) = 0;

  virtual MonotonicTime Now() const = 0;

  /// Posts `task` at or soon after `deadline`. A cancelled task may still run if it was posted
  /// already: use LoopTimer.
  virtual TaskId RunAt(MonotonicTime deadline, absl::AnyInvocable<void()> task) = 0;
  virtual void Cancel(TaskId id) = 0;
};

/// One timer of a loop-confined object, which may die with it running: after Clear, Set or the
/// destructor the earlier task does not run.
///
/// Loop-confined. Borrows the loop.
class LoopTimer {
 public:
  explicit LoopTimer(Loop& loop) : loop_(loop) {}
  LoopTimer(const LoopTimer&) = delete;
  LoopTimer& operator=(const LoopTimer&) = delete;
  ~LoopTimer() { Clear(); }

  /// Runs `task` once at `deadline` in place of what was set before.
  void Set(MonotonicTime deadline, absl::AnyInvocable<void()> task) {
    Clear();
    deadline_ = deadline;
    if (deadline == MonotonicTime::InfiniteFuture()) return;
    armed_ = std::make_shared<bool>(true);
    id_ = loop_.RunAt(deadline, [this, armed = armed_, task = std::move(task)]() mutable {
      if (!*armed) return;
      *armed = false;
      deadline_ = MonotonicTime::InfiniteFuture();
      task();
    });
  }

  void Clear() {
    deadline_ = MonotonicTime::InfiniteFuture();
    if (armed_ == nullptr || !*armed_) return;
    *armed_ = false;
    loop_.Cancel(id_);
  }

  /// When it will run; InfiniteFuture when it is not set.
  MonotonicTime deadline() const { return deadline_; }

 private:
  Loop& loop_;
  std::shared_ptr<bool> armed_;  // shared with the task in flight, which outlives the timer
  TaskId id_;
  MonotonicTime deadline_ = MonotonicTime::InfiniteFuture();
};

}  // namespace pageferry::agent
