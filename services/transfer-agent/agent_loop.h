#pragma once

#include <utility>

#include "libs/common/clock.h"
#include "libs/common/scheduler.h"
#include "services/transfer-agent/core_loop.h"
#include "services/transfer-agent/loop.h"

namespace pageferry::agent {

/// The loop of the agent: the core's, with time.
///
/// Thread-safe. Borrows all three.
class AgentLoop final : public Loop {
 public:
  AgentLoop(CoreLoop& core_loop, const Clock& clock, Scheduler& scheduler)
      : core_loop_(core_loop), clock_(clock), scheduler_(scheduler) {}

  void Post(absl::AnyInvocable<void()> task) override {
    core_loop_.Post([task = std::move(task)](AgentCore&, MonotonicTime) mutable { task(); });
  }

  MonotonicTime Now() const override { return clock_.Now(); }

  TaskId RunAt(MonotonicTime deadline, absl::AnyInvocable<void()> task) override {
    // Not by way of this object: the scheduler may run the task when it is gone.
    return scheduler_.RunAt(deadline, [&core_loop = core_loop_, task = std::move(task)]() mutable {
      core_loop.Post([task = std::move(task)](AgentCore&, MonotonicTime) mutable { task(); });
    });
  }

  void Cancel(TaskId id) override { scheduler_.Cancel(id); }

 private:
  CoreLoop& core_loop_;
  const Clock& clock_;
  Scheduler& scheduler_;
};

}  // namespace pageferry::agent
