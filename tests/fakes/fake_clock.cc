#include "tests/fakes/fake_clock.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"
#include "libs/common/scheduler.h"

namespace pageferry {

MonotonicTime FakeClock::Now() const {
  absl::MutexLock lock(&mutex_);
  return now_;
}

absl::Time FakeClock::WallNow() const {
  absl::MutexLock lock(&mutex_);
  constexpr int64_t kNewYear2026 = 1'767'225'600;
  return absl::FromUnixSeconds(kNewYear2026 - 1000) + absl::Nanoseconds(now_.nanoseconds()) +
         wall_offset_;
}

TaskId FakeClock::RunAt(MonotonicTime deadline, absl::AnyInvocable<void()> task) {
  absl::MutexLock lock(&mutex_);
  last_id_ = last_id_.Next();
  tasks_.emplace(Key{deadline, last_id_}, std::move(task));
  deadlines_.emplace(last_id_, deadline);
  return last_id_;
}

bool FakeClock::Cancel(TaskId id) {
  absl::AnyInvocable<void()> dropped;  // outlives the lock
  absl::MutexLock lock(&mutex_);
  const auto deadline = deadlines_.find(id);
  if (deadline == deadlines_.end()) return false;
  const auto task = tasks_.find(Key{deadline->second, id});
  dropped = std::move(task->second);
  tasks_.erase(task);
  deadlines_.erase(deadline);
  return true;
}

bool FakeClock::CancelAndWait(TaskId id) {
  if (Cancel(id)) return true;
  absl::MutexLock lock(&mutex_);
  const auto finished = [this, id]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return std::find(running_.begin(), running_.end(), id) == running_.end();
  };
  mutex_.Await(absl::Condition(&finished));
  return false;
}

size_t FakeClock::Advance(absl::Duration duration) {
  return AdvanceTo(Now() + std::max(duration, absl::ZeroDuration()));
}

size_t FakeClock::AdvanceTo(MonotonicTime time) {
  size_t ran = 0;
  while (true) {
    absl::AnyInvocable<void()> task;
    TaskId id;
    {
      absl::MutexLock lock(&mutex_);
      if (tasks_.empty() || tasks_.begin()->first.first > std::max(time, now_)) {
        now_ = std::max(now_, time);
        return ran;
      }
      const auto next = tasks_.begin();
      id = next->first.second;
      now_ = std::max(now_, next->first.first);
      task = std::move(next->second);
      deadlines_.erase(id);
      tasks_.erase(next);
      running_.push_back(id);
    }
    task();
    task = nullptr;
    ++ran;
    absl::MutexLock lock(&mutex_);
    running_.erase(std::find(running_.begin(), running_.end(), id));
  }
}

void FakeClock::JumpWall(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  wall_offset_ += duration;
}

size_t FakeClock::pending() const {
  absl::MutexLock lock(&mutex_);
  return tasks_.size();
}

MonotonicTime FakeClock::next_deadline() const {
  absl::MutexLock lock(&mutex_);
  return tasks_.empty() ? MonotonicTime::InfiniteFuture() : tasks_.begin()->first.first;
}

}  // namespace pageferry
