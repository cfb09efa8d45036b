#pragma once

#include <deque>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "libs/common/clock.h"
#include "libs/common/ids.h"
#include "libs/common/scheduler.h"
#include "libs/common/steady_condition.h"
#include "services/transfer-agent/agent_core.h"

namespace pageferry::agent {

/// Something to be done to the core, with the time at which it begins.
using CoreTask = absl::AnyInvocable<void(AgentCore& core, MonotonicTime now)>;

/// Serialises all that happens to the core: events of both edges, answers of the ports, questions
/// of operators, and time.
///
/// Thread-safe. Tasks run one at a time in the order of Post, with no lock held; they must not
/// block. It may be posted to before Start; what is posted then runs after it.
class CoreLoop {
 public:
  CoreLoop() = default;
  CoreLoop(const CoreLoop&) = delete;
  CoreLoop& operator=(const CoreLoop&) = delete;
  virtual ~CoreLoop() = default;

  /// Once. `core` is borrowed until Stop has returned.
  virtual void Start(AgentCore& core) = 0;
  /// False after Stop: the task is dropped. Never blocks; may be called from a task.
  virtual bool Post(CoreTask task) = 0;
  /// Runs what was posted before, then no more. Idempotent. Not from a task.
  virtual void Stop() = 0;

  /// Runs `function(core, now)` as a task and waits for its result; nothing (or false where it
  /// returns void) after Stop. Not from a task, and not before Start: deadlock.
  template <class F>
  auto Call(F&& function) {
    using R = std::invoke_result_t<F&, AgentCore&, MonotonicTime>;
    absl::Notification done;
    if constexpr (std::is_void_v<R>) {
      if (!Post([&](AgentCore& core, MonotonicTime now) {
            function(core, now);
            done.Notify();
          })) {
        return false;
      }
      done.WaitForNotification();
      return true;
    } else {
      std::optional<R> result;
      if (Post([&](AgentCore& core, MonotonicTime now) {
            result.emplace(function(core, now));
            done.Notify();
          })) {
        done.WaitForNotification();
      }
      return result;
    }
  }
};

/// A loop with a thread of its own, which sleeps until there is a task or the core's NextDeadline.
///
/// The destructor stops. Borrows `clock`, which must count as RealClock does.
class ThreadCoreLoop final : public CoreLoop {
 public:
  explicit ThreadCoreLoop(const Clock& clock) : clock_(clock) {}
  ~ThreadCoreLoop() override { Stop(); }

  void Start(AgentCore& core) override;
  bool Post(CoreTask task) override;
  void Stop() override;

 private:
  void Loop(AgentCore& core);

  const Clock& clock_;
  absl::Mutex mutex_;
  SteadyCondition changed_;
  std::deque<CoreTask> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Mutex stop_mutex_;  // before mutex_; held while the thread is joined
  std::thread thread_ ABSL_GUARDED_BY(stop_mutex_);
};

/// A loop without a thread, for tests with a FakeClock: Post runs the task at once on the calling
/// thread, unless a task runs already; then the thread that runs that one takes it too. Time passes
/// by tasks of `scheduler`.
///
/// Borrows both, which are usually one FakeClock.
class InlineCoreLoop final : public CoreLoop {
 public:
  InlineCoreLoop(const Clock& clock, Scheduler& scheduler) : clock_(clock), scheduler_(scheduler) {}
  ~InlineCoreLoop() override { Stop(); }

  void Start(AgentCore& core) override;
  bool Post(CoreTask task) override;
  void Stop() override;

 private:
  void RunQueue();
  void SetTimer();

  const Clock& clock_;
  Scheduler& scheduler_;
  absl::Mutex mutex_;
  AgentCore* core_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::deque<CoreTask> queue_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  TaskId timer_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime timer_at_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfiniteFuture();
};

}  // namespace pageferry::agent
