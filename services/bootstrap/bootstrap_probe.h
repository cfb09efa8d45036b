#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/metrics.h"
#include "services/bootstrap/store.h"

namespace pageferry::bootstrap {

/// The calls of the service, as metric labels name them.
enum class Rpc : uint8_t {
  kRegister,
  kKeepAlive,
  kDeregister,
  kGetEngine,
  kListEngines,
  kResolveRanks,
  kWatchEngines,
  kPlaceRooms,
  kLookupRooms,
};

/// The metrics of this service. Thread-safe; borrows the registry, which must outlive it.
class BootstrapProbe {
 public:
  explicit BootstrapProbe(MetricRegistry& registry);

  /// Gauges that are read at each scrape. What they refer to must outlive the registry's use.
  void ReadFrom(std::function<Store::Stats()> stats, std::function<size_t()> watchers);

  void RpcDone(Rpc rpc, absl::StatusCode code, absl::Duration taken);
  void Registered(int64_t count) { Count(registrations_, count); }
  void Deregistered(int64_t count) { Count(deregistrations_, count); }
  void Expired(int64_t count) { Count(expiries_, count); }
  void Superseded(int64_t count) { Count(supersedes_, count); }
  void RoomsPlaced(int64_t count) { Count(rooms_placed_, count); }
  void RoomsMoved(int64_t count) { Count(rooms_moved_, count); }
  void LeasesRenewed(int64_t count) { Count(renewals_, count); }
  void LeasesLost(int64_t count) { Count(renewals_refused_, count); }
  void WatchMessage() { watch_messages_.Add(); }
  void WatchCutOff() { watch_cut_offs_.Add(); }

 private:
  static void Count(Counter& counter, int64_t count) {
    if (count > 0) counter.Add(static_cast<double>(count));
  }

  MetricRegistry& registry_;
  MetricFamily<Counter> rpcs_;
  MetricFamily<Histogram> latency_;
  Counter registrations_;
  Counter deregistrations_;
  Counter expiries_;
  Counter supersedes_;
  Counter renewals_;
  Counter renewals_refused_;
  Counter rooms_placed_;
  Counter rooms_moved_;
  Counter watch_messages_;
  Counter watch_cut_offs_;
};

/// "register", for labels and logs.
absl::string_view RpcName(Rpc rpc);

}  // namespace pageferry::bootstrap
