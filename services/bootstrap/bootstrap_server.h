#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/bootstrap/server_options.h"

namespace pageferry::bootstrap {

/// The whole service, running: tables, gRPC, health, reflection, metrics.
///
/// Movable handle; methods are thread-safe but moves. The destructor drains and stops.
class BootstrapServer {
 public:
  /// Returns when all addresses are listened on, or none. The status codes of `GrpcServer::Start`
  /// and `MetricsServer::Start`.
  static absl::StatusOr<BootstrapServer> Start(const ServerOptions& options);

  BootstrapServer(BootstrapServer&&) noexcept;
  BootstrapServer& operator=(BootstrapServer&&) noexcept;
  ~BootstrapServer();

  /// "host:port" of the service.
  const std::string& address() const;
  int port() const;
  /// 0 where there is none.
  int health_port() const;
  int metrics_port() const;

  /// What the metrics port serves.
  std::string Metrics() const;

  /// Turns health to NOT_SERVING, ends streams and waiting calls with DRAINING, lets other calls
  /// end and stops. Again: does nothing.
  void Stop();

 private:
  struct Impl;
  explicit BootstrapServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry::bootstrap
