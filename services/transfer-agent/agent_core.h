#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/messages.h"
#include "services/transfer-agent/ports.h"
#include "services/transfer-agent/profile.h"

namespace pageferry::agent {

/// The other end of a session, as Hello and HelloReply told.
struct PeerInfo {
  AgentRef agent;
  EngineInfo engine;
  transport::TransportKind transport = transport::TransportKind::kLocal;
  transport::Driver driver = transport::Driver::kTarget;
  /// True where this agent dialled: it receives pages from that peer; else it
  /// sends to it.
  bool dialled = false;
  /// Live rooms that it takes of this agent; 0 is not told.
  int64_t room_credit = 0;
};

/// A room as operators see it.
struct RoomView {
  RoomKey room;
  Role role = Role::kPrefill;
  RoomState state = RoomState::kBootstrapping;
  bool drained = false;
  std::string waiting_for;
  absl::Duration waiting_time;
  absl::Duration age;
  absl::Duration time_left;
  std::optional<AgentRef> peer;
  std::string peer_engine;
  std::optional<transport::TransportKind> transport;
  int64_t pages_granted = -1;
  int64_t pages_offered = 0;
  int64_t pages_done = 0;
  ByteCount bytes_done;
  absl::Status error;
};

/// Limits of the core. All bounds are inclusive.
struct CoreLimits {
  int64_t max_rooms = 65'536;          // live, both roles
  int64_t max_rooms_of_peer = 32'768;  // of them, granted by one session: HelloReply.room_credit
  int64_t max_tombstones = 65'536;     // oldest go first
  absl::Duration tombstone_ttl = absl::Seconds(300);
  int64_t max_held_chunks = 4'096;                       // of one room, before its grant has come
  absl::Duration orphan_grant_ttl = absl::Seconds(300);  // a grant without a send, at most
};

/// Counts what happens, for metrics. Called on the core's thread; must be
/// cheap.
class CoreProbe {
 public:
  virtual ~CoreProbe() = default;
  virtual void RoomOpened(Role role) = 0;
  /// `reason` is kUnspecified for SUCCESS.
  virtual void RoomEnded(Role role, Reason reason, absl::Duration elapsed) = 0;
  virtual void RoomDrained(Role role, absl::Duration since_end) = 0;
  virtual void GrantCompleted(transport::TransportKind kind, absl::Duration since_grant) = 0;
  virtual void ChunkMoved(transport::TransportKind kind, int64_t pages, ByteCount bytes,
                          absl::Duration took) = 0;
  virtual void FrameRefused(Reason reason) = 0;
  virtual void CommandWasRefused(Reason reason) = 0;
};

/// Everything that an agent decides: both room machines, attempts, tombstones,
/// deadlines, what is told to whom. It neither waits nor asks the time.
///
/// Thread-compatible: the caller (core_loop.h) serialises. Borrows the ports
/// and the probe. Calls out only through them.
class AgentCore {
 public:
  struct Ports {
    EnginePort& engine;
    PeerPort& peers;
    PeerFinder& finder;
    SealPort& seals;
    MovePort& mover;
    CoreProbe& probe;
  };

  AgentCore(const CoreLimits& limits, Ports ports);
  ~AgentCore();
  AgentCore(const AgentCore&) = delete;
  AgentCore& operator=(const AgentCore&) = delete;

  // --- the engine ---

  /// The engine registered; its profile has been checked against the pools.
  /// Before the first room.
  void SetEngine(const EngineInfo& engine, const AgentRef& self);
  /// The bootstrap service issued this epoch.
  void SetSelf(const AgentRef& self);
  /// A session of the engine has begun. Between OnEngineGone and this, grants
  /// are refused with ENGINE_LOST. Taken for granted after SetEngine.
  void OnEngineUp();
  void OnEngineCommand(EngineCommand command, MonotonicTime now);
  /// The engine's session ended: its rooms fail with ENGINE_LOST, both sides
  /// are told, drained.
  void OnEngineGone(const absl::Status& why, MonotonicTime now);

  // --- peers ---

  /// A session is live. Called before any frame of it.
  void OnPeerUp(PeerId peer, const PeerInfo& info, MonotonicTime now);
  /// `sequence` is the frame's, to be named in Refused.
  void OnPeerFrame(PeerId peer, Sequence sequence, PeerFrame frame, MonotonicTime now);
  /// A session ended for good: its rooms fail with PEER_LOST and `why` in the
  /// message.
  void OnPeerDown(PeerId peer, const absl::Status& why, MonotonicTime now);

  // --- answers of the ports ---

  void OnPeerFound(int64_t ticket, absl::StatusOr<PeerId> peer, MonotonicTime now);
  void OnMoveDone(int64_t ticket, const absl::Status& status, MonotonicTime now);

  // --- time ---

  /// When OnTime wants to be called next; InfiniteFuture when nothing waits for
  /// time.
  MonotonicTime NextDeadline() const;
  void OnTime(MonotonicTime now);

  // --- operators ---

  /// Rooms by (id, attempt) after `after`, at most `limit`, tombstones
  /// included.
  std::vector<RoomView> ListRooms(std::optional<RoomKey> after, int64_t limit,
                                  MonotonicTime now) const;
  /// Attempt 0 is the newest. kNotFound, ROOM_NOT_FOUND.
  absl::StatusOr<RoomView> GetRoom(RoomKey room, MonotonicTime now) const;
  /// Attempt 0 is every live attempt. kNotFound, ROOM_NOT_FOUND.
  absl::Status AbortRoom(RoomKey room, const std::string& detail, MonotonicTime now);
  /// From now on new rooms and grants are refused with DRAINING.
  void StartDrain();
  /// Live rooms, drained ones not counted.
  int64_t LiveRooms() const;
  /// What is held, by kind; all zero when nothing is going on, but for
  /// "tombstones". Names are metric label values: rooms_prefill, rooms_decode,
  /// grants_held, offers_open, moves_running, chunks_held, seals, tickets,
  /// tombstones.
  std::map<std::string, int64_t> Ledger() const;
  /// Live rooms by role and state, for metrics.
  std::map<std::pair<Role, RoomState>, int64_t> RoomsByState() const;
  /// Rooms on a session.
  int64_t RoomsOfPeer(PeerId peer) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry::agent
