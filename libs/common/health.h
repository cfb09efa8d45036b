#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace pageferry {

/// What the standard gRPC health service answers, by service name; "" is the server as a whole.
///
/// Thread-safe. No I/O: `grpc_health.h` serves it. Watchers are called with a lock held that orders
/// them, so they must be short and must not call back into this object.
class HealthRegistry {
 public:
  /// Nothing for a name that was never set (NOT_FOUND, or SERVICE_UNKNOWN in a watch).
  using Serving = std::optional<bool>;
  using WatchFunction = std::function<void(Serving serving, bool ended)>;

  HealthRegistry() = default;
  HealthRegistry(const HealthRegistry&) = delete;
  HealthRegistry& operator=(const HealthRegistry&) = delete;

  /// Sets the state of `service`. Ignored after `End`.
  void Set(absl::string_view service, bool serving);

  /// Sets every known name to NOT_SERVING for good (drain): later `Set` calls are ignored.
  void SetAllNotServing();

  /// SetAllNotServing, and tells every watcher that its stream is over.
  void End();

  Serving Get(absl::string_view service) const;

  /// Calls `watcher` now with the state of `service` and again at each change, until Unwatch.
  /// Returns a number for Unwatch, after which `watcher` is not running and never called again.
  int64_t Watch(absl::string_view service, WatchFunction watcher);
  void Unwatch(int64_t watch);

 private:
  struct Watcher {
    std::string service;
    WatchFunction function;
  };

  void NotifyLocked(absl::string_view service) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, bool, std::less<>> services_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
  int64_t last_watch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pageferry
