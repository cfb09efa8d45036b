#include "services/transfer-agent/core_loop.h"

#include <deque>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "libs/common/ids.h"

namespace pageferry::agent {

void ThreadCoreLoop::Start(AgentCore& core) {
  absl::MutexLock lock(&stop_mutex_);
  thread_ = std::thread([this, &core] { Loop(core); });
}

bool ThreadCoreLoop::Post(CoreTask task) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return false;
  queue_.push_back(std::move(task));
  if (queue_.size() == 1) changed_.NotifyAll();  // else it is awake or has been woken
  return true;
}

void ThreadCoreLoop::Stop() {
  absl::MutexLock stop_lock(&stop_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ThreadCoreLoop::Loop(AgentCore& core) {
  while (true) {
    const MonotonicTime deadline = core.NextDeadline();
    std::deque<CoreTask> tasks;
    {
      absl::MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_ && clock_.Now() < deadline) {
        changed_.WaitUntil(mutex_, deadline);
      }
      if (queue_.empty() && stopping_) return;
      tasks.swap(queue_);
    }
    for (CoreTask& task : tasks) {
      task(core, clock_.Now());
      task = nullptr;
    }
    if (const MonotonicTime now = clock_.Now(); core.NextDeadline() <= now) core.OnTime(now);
  }
}

void InlineCoreLoop::Start(AgentCore& core) {
  {
    absl::MutexLock lock(&mutex_);
    core_ = &core;
  }
  RunQueue();
}

bool InlineCoreLoop::Post(CoreTask task) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return false;
    queue_.push_back(std::move(task));
  }
  RunQueue();
  return true;
}

void InlineCoreLoop::RunQueue() {
  while (true) {
    CoreTask task;
    AgentCore* core = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (core_ == nullptr || running_ || queue_.empty()) return;
      running_ = true;
      core = core_;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task(*core, clock_.Now());
    task = nullptr;
    SetTimer();
    absl::MutexLock lock(&mutex_);
    running_ = false;
  }
}

// Runs while `running_`, so that no other thread touches the core or the timer.
void InlineCoreLoop::SetTimer() {
  TaskId old;
  MonotonicTime next = MonotonicTime::InfiniteFuture();
  {
    absl::MutexLock lock(&mutex_);
    next = core_->NextDeadline();
    if (stopped_ || next == timer_at_) return;
    old = timer_;
    timer_at_ = next;
    timer_ = TaskId();
  }
  if (old != TaskId()) scheduler_.Cancel(old);
  if (next == MonotonicTime::InfiniteFuture()) return;
  const TaskId timer = scheduler_.RunAt(next, [this] {
    {
      absl::MutexLock lock(&mutex_);
      timer_at_ = MonotonicTime::InfiniteFuture();
      timer_ = TaskId();
    }
    Post([](AgentCore& core, MonotonicTime now) { core.OnTime(now); });
  });
  absl::MutexLock lock(&mutex_);
  timer_ = timer;
}

void InlineCoreLoop::Stop() {
  TaskId timer;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    timer = timer_;
    timer_ = TaskId();
  }
  if (timer != TaskId()) scheduler_.CancelAndWait(timer);
  RunQueue();
  const auto idle = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !running_; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&idle));
}

}  // namespace pageferry::agent
