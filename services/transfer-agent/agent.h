#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/transfer-agent/agent_options.h"

namespace pageferry::agent {

/// One transfer agent, running: core, sessions, pools, both servers, metrics.
///
///   engine --unix--> engine server --\                    /--> bootstrap service
///                                     loop (core, hosts) ----> agents that it dials
///   agents --TCP---> peer server   --/        |            \-> workers: memory, mappings
///                                     copying threads
///
/// Movable handle; methods are thread-safe but moves. The destructor stops without waiting for
/// rooms.
class Agent {
 public:
  /// Returns when all addresses are listened on, or none. The status codes of `GrpcServer::Start`
  /// and `MetricsServer::Start`; kInvalidArgument, INVALID_FIELD for options that do not fit
  /// together, such as a wildcard that would be advertised.
  static absl::StatusOr<Agent> Start(const AgentOptions& options);

  Agent(Agent&&) noexcept;
  Agent& operator=(Agent&&) noexcept;
  ~Agent();

  const std::string& id() const;
  /// Bound addresses of the engine side, as given with port 0 replaced.
  const std::vector<std::string>& engine_addresses() const;
  /// Bound "host:port" of the peer side.
  const std::string& peer_address() const;
  int peer_port() const;
  /// 0 where there is none.
  int health_port() const;
  int metrics_port() const;
  /// What the metrics port serves.
  std::string Metrics() const;

  /// Drains: refuses new rooms, lets live ones end within the drain timeout, aborts the rest, gives
  /// the cell up, removes sockets and pools. Again: does nothing.
  void Stop();
  /// The same with another timeout.
  void Stop(absl::Duration drain_timeout);

 private:
  struct Base;
  struct Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry::agent
