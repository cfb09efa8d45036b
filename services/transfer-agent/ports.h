#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "libs/common/ids.h"
#include "libs/common/topology.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/messages.h"
#include "services/transfer-agent/profile.h"

/// The outside of the agent's core: each interface is called by the core on its
/// own thread, must not block and must not call back into the core from inside
/// the call. Answers come as posts to the core's loop. Tests have fakes of all
/// of them.
namespace pageferry::agent {

/// To the engine's session. Events for an engine that has gone are dropped.
class EnginePort {
 public:
  virtual ~EnginePort() = default;
  virtual void Send(EngineEvent event) = 0;
};

/// To the sessions with other agents.
class PeerPort {
 public:
  virtual ~PeerPort() = default;
  /// Puts a frame on the session's stream. Dropped if the session has ended:
  /// the core hears of that by OnPeerDown.
  virtual void Send(PeerId peer, PeerFrame frame) = 0;
  /// Ends a session on purpose (dead by heartbeat, superseded). OnPeerDown
  /// follows, once.
  virtual void Close(PeerId peer, absl::Status reason) = 0;
};

/// Where a prefill rank is to be found.
struct RankQuery {
  EngineId engine;
  RoomId room;
  /// Own shape and coordinate: the rank of the other engine is derived from
  /// them.
  ParallelShape shape;
  RankCoordinate coordinate;
  std::optional<int32_t> dp_rank;
};

/// Finds prefill ranks and keeps sessions to them: resolves by bootstrap table,
/// dials, says Hello, opens the transport, retries with backoff until
/// `deadline`.
class PeerFinder {
 public:
  virtual ~PeerFinder() = default;
  /// Answered by AgentCore::OnPeerFound with the ticket, exactly once, unless
  /// cancelled: with the session over which the room's grant is to be sent, or
  /// with why there is none (ENGINE_NOT_FOUND, ENGINE_NOT_READY,
  /// BOOTSTRAP_UNREACHABLE, UNSUPPORTED for another shape, NO_TRANSPORT...).
  virtual void Find(int64_t ticket, const RankQuery& query, MonotonicTime deadline) = 0;
  virtual void Cancel(int64_t ticket) = 0;
};

/// Seals in this agent's pools.
class SealPort {
 public:
  virtual ~SealPort() = default;
  /// Makes a whole seal. kResourceExhausted, LIMIT_REACHED when all are in use.
  virtual absl::StatusOr<transport::SealRef> Make() = 0;
  /// Breaks it and frees its place. After this returns the pages it covers may
  /// be reused.
  virtual void Break(const transport::SealRef& seal) = 0;
};

/// Moves bytes over the transport that the session agreed on.
class MovePort {
 public:
  virtual ~MovePort() = default;
  /// Starts to move; answered by AgentCore::OnMoveDone with the ticket, exactly
  /// once.
  virtual void Start(int64_t ticket, PeerId peer, transport::Batch batch) = 0;
};

}  // namespace pageferry::agent
