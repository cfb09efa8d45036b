#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace pageferry {

/// What the standard gRPC health service answers, by service name; "" is the server as a whole.
///
/// Thread-safe. Pure state: `grpc_health.h` serves it. Calls no watcher with a lock held.
class HealthRegistry {
 public:
  /// Nothing for a name that was never set (NOT_FOUND, or SERVICE_UNKNOWN in a watch).
  using Serving = std::optional<bool>;
  /// Says that something may have changed: `Get` and `ended` tell what. Must be short.
  using Wake = std::function<void()>;

  HealthRegistry() = default;
  HealthRegistry(const HealthRegistry&) = delete;
  HealthRegistry& operator=(const HealthRegistry&) = delete;

  /// Sets the state of `service`. Ignored after `SetAllNotServing`.
  void Set(absl::string_view service, bool serving);

  /// Sets every known name to not serving, for good (drain).
  void SetAllNotServing();

  /// SetAllNotServing, and `ended` turns true: watches are over.
  void End();

  Serving Get(absl::string_view service) const;
  bool ended() const;

  /// Calls `wake` after each change of anything. Returns a number for Unwatch. A call that has
  /// begun may still run after Unwatch, so `wake` owns what it refers to.
  int64_t Watch(Wake wake);
  void Unwatch(int64_t watch);

 private:
  using Wakes = std::vector<std::shared_ptr<const Wake>>;

  void Freeze(bool end);
  Wakes WakesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, bool> services_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::shared_ptr<const Wake>> watches_ ABSL_GUARDED_BY(mutex_);
  int64_t last_watch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pageferry
