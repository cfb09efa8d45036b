#pragma once

#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/steady_condition.h"

namespace pageferry::agent {

/// One thread for what may block (mapping and freeing memory), so that the loop never does.
///
/// Thread-safe. The destructor runs what was posted, then joins; not from a task.
class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Runs `task` after those posted before, with no lock held.
  void Post(absl::AnyInvocable<void()> task);

 private:
  void Run();

  absl::Mutex mutex_;
  SteadyCondition changed_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace pageferry::agent
