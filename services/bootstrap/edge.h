#pragma once

#include <memory>

#include "absl/time/time.h"
#include "libs/common/clock.h"
#include "services/bootstrap/bootstrap_probe.h"
#include "services/bootstrap/store.h"
#include "services/bootstrap/validate.h"
#include "services/bootstrap/watch_hub.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace pageferry::bootstrap {

/// What every reactor works with. All borrowed; they outlive the gRPC server.
struct EdgeContext {
  RequestLimits limits;
  /// A watcher whose one write takes longer is cut off; what it was sent so far is dropped after
  /// the same time again.
  absl::Duration watch_stall_timeout = absl::Seconds(30);
  Store& store;
  WatchHub& hub;
  BootstrapProbe& probe;
  const Clock& clock;
};

/// The gRPC face of the service, kept out of sight of those who include this.
///
/// Thread-safe. Must outlive the gRPC server that it is added to.
class BootstrapEdge {
 public:
  explicit BootstrapEdge(const EdgeContext& context);
  ~BootstrapEdge();
  BootstrapEdge(const BootstrapEdge&) = delete;
  BootstrapEdge& operator=(const BootstrapEdge&) = delete;

  grpc::Service* service();

  /// Ends every stream with kUnavailable, DRAINING, those that open later as well.
  void StopStreams();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry::bootstrap
