#include "libs/common/gate.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/ids.h"
#include "libs/common/steady_condition.h"

namespace pageferry {

struct Gate::State {
  using Callbacks = std::vector<absl::AnyInvocable<void()>>;

  Callbacks TakeIfIdleLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!closed || in_flight != 0) return {};
    idle.NotifyAll();
    return std::exchange(on_idle, {});
  }

  absl::Mutex mutex;
  SteadyCondition idle;
  bool closed ABSL_GUARDED_BY(mutex) = false;
  int64_t in_flight ABSL_GUARDED_BY(mutex) = 0;
  Callbacks on_idle ABSL_GUARDED_BY(mutex);
};

Gate::Gate() : state_(std::make_shared<State>()) {}

Gate::Holder& Gate::Holder::operator=(Holder&& other) noexcept {
  if (this != &other) {
    Release();
    state_ = std::move(other.state_);
  }
  return *this;
}

void Gate::Holder::Release() {
  const std::shared_ptr<State> state = std::move(state_);
  if (state == nullptr) return;
  State::Callbacks callbacks;
  {
    absl::MutexLock lock(&state->mutex);
    --state->in_flight;
    callbacks = state->TakeIfIdleLocked();
  }
  for (auto& callback : callbacks) callback();
}

std::optional<Gate::Holder> Gate::Enter() {
  absl::MutexLock lock(&state_->mutex);
  if (state_->closed) return std::nullopt;
  ++state_->in_flight;
  return Holder(state_);
}

void Gate::Close(absl::AnyInvocable<void()> on_idle) {
  const std::shared_ptr<State> state = state_;
  State::Callbacks callbacks;
  {
    absl::MutexLock lock(&state->mutex);
    state->closed = true;
    if (on_idle != nullptr) state->on_idle.push_back(std::move(on_idle));
    callbacks = state->TakeIfIdleLocked();
  }
  for (auto& callback : callbacks) callback();
}

bool Gate::WaitUntilIdle(MonotonicTime deadline) {
  State& state = *state_;
  absl::MutexLock lock(&state.mutex);
  while (!state.closed || state.in_flight != 0) {
    if (!state.idle.WaitUntil(state.mutex, deadline)) {
      return state.closed && state.in_flight == 0;
    }
  }
  return true;
}

bool Gate::closed() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->closed;
}

int64_t Gate::in_flight() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->in_flight;
}

}  // namespace pageferry
