#include "libs/common/scheduler.h"

#include <map>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/clock.h"
#include "libs/common/ids.h"

namespace pageferry {

RealScheduler::RealScheduler(const Clock& clock) : clock_(clock), thread_([this] { Loop(); }) {}

RealScheduler::~RealScheduler() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  // Tasks are destroyed without the lock: their captures may call Cancel.
  std::map<Key, absl::AnyInvocable<void()>> dropped;
  {
    absl::MutexLock lock(&mutex_);
    dropped.swap(pending_);
    deadlines_.clear();
  }
}

TaskId RealScheduler::RunAt(MonotonicTime deadline, absl::AnyInvocable<void()> task) {
  absl::MutexLock lock(&mutex_);
  last_id_ = last_id_.Next();
  const auto [position, inserted] = pending_.emplace(Key{deadline, last_id_}, std::move(task));
  deadlines_.emplace(last_id_, deadline);
  if (position == pending_.begin()) changed_.NotifyAll();
  return last_id_;
}

absl::AnyInvocable<void()> RealScheduler::TakeLocked(TaskId id) {
  const auto deadline = deadlines_.find(id);
  if (deadline == deadlines_.end()) return nullptr;
  auto task = pending_.extract(Key{deadline->second, id});
  deadlines_.erase(deadline);
  return std::move(task.mapped());
}

bool RealScheduler::Cancel(TaskId id) {
  absl::AnyInvocable<void()> dropped;  // outlives the lock
  absl::MutexLock lock(&mutex_);
  if (!deadlines_.contains(id)) return false;
  dropped = TakeLocked(id);
  return true;
}

bool RealScheduler::CancelAndWait(TaskId id) {
  if (Cancel(id)) return true;
  absl::MutexLock lock(&mutex_);
  while (running_ == id && id != TaskId()) {
    changed_.WaitUntil(mutex_, MonotonicTime::InfiniteFuture());
  }
  return false;
}

void RealScheduler::Loop() {
  while (true) {
    absl::AnyInvocable<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_ && (pending_.empty() || pending_.begin()->first.first > clock_.Now())) {
        changed_.WaitUntil(mutex_, pending_.empty() ? MonotonicTime::InfiniteFuture()
                                                    : pending_.begin()->first.first);
      }
      if (stopping_) return;
      running_ = pending_.begin()->first.second;
      task = TakeLocked(running_);
    }
    task();
    task = nullptr;
    absl::MutexLock lock(&mutex_);
    running_ = TaskId();
    changed_.NotifyAll();
  }
}

}  // namespace pageferry
