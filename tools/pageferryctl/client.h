#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/common/tls.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "pageferry/bootstrap/v1/bootstrap.pb.h"

namespace pageferry::ctl {

/// How calls are made.
struct Calling {
  absl::Duration timeout;
  std::shared_ptr<const Tls> tls;  ///< for TCP; null is clear text
};

/// Calls to a bootstrap service. Each waits at most its timeout; errors are what the service said,
/// UNAVAILABLE without a reason where none can be reached, or DEADLINE_EXCEEDED.
///
/// Not thread-safe. Blocks its caller.
class BootstrapCalls {
 public:
  /// `address` is host:port.
  BootstrapCalls(const std::string& address, const Calling& calling);
  ~BootstrapCalls();
  BootstrapCalls(const BootstrapCalls&) = delete;
  BootstrapCalls& operator=(const BootstrapCalls&) = delete;

  /// All pages in one message, with the version of the last.
  absl::StatusOr<bootstrap::v1::ListEnginesResponse> ListEngines(const std::string& name_space);
  /// With its ranks.
  absl::StatusOr<bootstrap::v1::GetEngineResponse> GetEngine(const std::string& name_space,
                                                             const std::string& engine);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Calls to the operator's part of an agent; otherwise as BootstrapCalls.
class AgentCalls {
 public:
  /// `target` is unix:/path or host:port.
  AgentCalls(const std::string& target, const Calling& calling);
  ~AgentCalls();
  AgentCalls(const AgentCalls&) = delete;
  AgentCalls& operator=(const AgentCalls&) = delete;

  absl::StatusOr<agent::v1::GetAgentResponse> GetAgent();
  /// All pages; no `states` is all.
  absl::StatusOr<std::vector<agent::v1::RoomInfo>> ListRooms(const std::vector<int>& states);
  absl::StatusOr<agent::v1::RoomInfo> GetRoom(const agent::v1::RoomRef& room);
  /// The room after the abort.
  absl::StatusOr<agent::v1::RoomInfo> AbortRoom(const agent::v1::RoomRef& room,
                                                const std::string& detail);
  /// Waits until the agent is empty: `limit` and the agent's own grace on top of the timeout.
  absl::StatusOr<agent::v1::DrainResponse> Drain(absl::Duration limit, bool deregister);
  /// Returns as soon as the agent takes no more rooms; the drain goes on without us.
  absl::Status BeginDrain(absl::Duration limit, bool deregister);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry::ctl
