#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/common/host_port.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/engine_table.h"
#include "services/transfer-agent/profile.h"

namespace pageferry::agent {

/// One life of this process; as in bootstrap.proto.
struct Incarnation {
  int64_t start_time_unix_nanos = 0;
  uint64_t nonce = 0;
};

/// A claim to a cell.
struct Registration {
  EngineInfo engine;
  AgentId agent;
  Incarnation incarnation;
  HostPort endpoint;
  absl::Duration ttl = absl::Seconds(3);
  Epoch last_epoch;
  std::optional<HostPort> metrics_endpoint;
  std::vector<std::string> transports;
};

/// What was granted.
struct Claim {
  LeaseId lease;
  Epoch epoch;
  absl::Duration ttl;
};

/// What became of a renewal.
struct Renewal {
  LeaseId lease;
  absl::Duration ttl;
  absl::Status lost;  ///< LEASE_NOT_FOUND or SUPERSEDED where it is lost
};

/// The bootstrap service, without gRPC: grpc_bootstrap_client.h is the real one.
///
/// Loop-confined; callbacks run on the loop, never inside a call. Statuses are those that the
/// service gives, or UNAVAILABLE, DEADLINE_EXCEEDED where it cannot be reached.
class BootstrapClient {
 public:
  /// A running stream. Dropping it cancels it: no callback comes any more.
  class Stream {
   public:
    virtual ~Stream() = default;
  };
  class KeepAliveStream : public Stream {
   public:
    /// Dropped when the stream has ended.
    virtual void Renew(LeaseId lease) = 0;
  };

  template <class Result>
  using Done = absl::AnyInvocable<void(Result)>;
  using EndFunction = absl::AnyInvocable<void(const absl::Status&)>;

  virtual ~BootstrapClient() = default;

  virtual void Register(const Registration& registration, absl::Duration timeout,
                        Done<absl::StatusOr<Claim>> done) = 0;
  virtual void Deregister(LeaseId lease, absl::Duration timeout, Done<absl::Status> done) = 0;
  virtual std::unique_ptr<KeepAliveStream> OpenKeepAlive(
      absl::AnyInvocable<void(std::vector<Renewal>)> on_renewals, EndFunction on_end) = 0;
  /// `resume_version` 0 asks for a snapshot.
  virtual std::unique_ptr<Stream> OpenWatch(const NamespaceName& name_space,
                                            const std::vector<EngineId>& engines,
                                            TableVersion resume_version,
                                            absl::AnyInvocable<void(TableEvent)> on_event,
                                            EndFunction on_end) = 0;
  virtual void PlaceRooms(const NamespaceName& name_space, const EngineId& engine,
                          const std::vector<std::pair<RoomId, int64_t>>& rooms,
                          absl::Duration timeout, Done<absl::Status> done) = 0;
  /// Waits up to `wait` for the room to be placed; kNotFound, ROOM_NOT_PLACED if it was not.
  virtual void LookupRoom(const NamespaceName& name_space, const EngineId& engine, RoomId room,
                          absl::Duration wait, Done<absl::StatusOr<int64_t>> done) = 0;
};

/// True for a failure to reach the service, as against an answer of it.
inline bool IsUnreachable(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded ||
         status.code() == absl::StatusCode::kCancelled;
}

}  // namespace pageferry::agent
