#include "services/transfer-agent/worker.h"

#include <utility>

#include "libs/common/ids.h"

namespace pageferry::agent {

Worker::Worker() : thread_([this] { Run(); }) {}

Worker::~Worker() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void Worker::Post(absl::AnyInvocable<void()> task) {
  {
    const absl::MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.NotifyAll();
}

void Worker::Run() {
  while (true) {
    absl::AnyInvocable<void()> task;
    {
      const absl::MutexLock lock(&mutex_);
      while (tasks_.empty() && !stopping_) {
        changed_.WaitUntil(mutex_, MonotonicTime::InfiniteFuture());
      }
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace pageferry::agent
