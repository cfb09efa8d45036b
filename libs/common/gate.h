#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/ids.h"
#include "libs/common/steady_condition.h"

namespace pageferry {

/// Counts work in flight, so that its owner can stop: close the gate, wait for zero, then destroy.
///
/// Thread-safe. A holder keeps the count itself alive, so a gate may be destroyed while holders are
/// out (its owner then gave up waiting); it owns the callback until it ran.
class Gate {
  struct State;

 public:
  /// One piece of work in flight. Movable; leaves the gate when destroyed. The last holder to leave
  /// a closed gate runs the callback of `Close`, on its own thread with no lock held.
  class Holder {
   public:
    Holder(Holder&& other) noexcept = default;
    Holder& operator=(Holder&& other) noexcept;
    ~Holder() { Release(); }

    /// Leaves early; a second call does nothing.
    void Release();

   private:
    friend class Gate;
    explicit Holder(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };

  Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() = default;

  /// Enters, or nothing once the gate is closed: refuse the work.
  [[nodiscard]] std::optional<Holder> Enter();

  /// Lets nobody in any more. `on_idle` runs once, when the last holder has left: inside this call
  /// if none is in. A later call adds its own callback.
  void Close(absl::AnyInvocable<void()> on_idle = nullptr);

  /// Waits until the gate is closed and no holder is in, or until `RealClock` reads `deadline`.
  /// True when it is idle. Not from a gRPC reaction or with a holder in hand.
  [[nodiscard]] bool WaitUntilIdle(MonotonicTime deadline);

  bool closed() const;
  int64_t in_flight() const;

 private:
  std::shared_ptr<State> state_;  // shared with holders, which may outlive the gate
};

}  // namespace pageferry
