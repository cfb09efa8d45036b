#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/messages.h"
#include "services/transfer-agent/profile.h"
#include "services/transfer-agent/room_ending.h"
#include "services/transfer-agent/transfer_plan.h"

namespace pageferry::agent {

/// What a room may do to the world. Calls come in the order in which things are to happen; none of
/// them calls back into the room.
class RoomActions {
 public:
  virtual ~RoomActions() = default;
  virtual void Tell(EngineEvent event) = 0;
  virtual void Send(PeerId peer, PeerFrame frame) = 0;
  virtual absl::StatusOr<transport::SealRef> MakeSeal() = 0;
  virtual void BreakSeal(const transport::SealRef& seal) = 0;
  /// Starts a move for the room with this serial number; answered by
  /// ReceiveRoom::OnMoveDone with the ticket that is returned.
  virtual int64_t StartMove(int64_t serial, PeerId peer, transport::Batch batch) = 0;
  virtual CoreProbe& probe() = 0;
};

/// The engine of this agent.
struct OwnEngine {
  EngineInfo info;
  ProfileSizes sizes;
};

/// A session, as its rooms need it. It outlives the session in the rooms that were on it.
struct PeerLink {
  PeerId id;
  PeerInfo info;
  /// Of the peer's profile.
  ProfileSizes sizes;
  /// From the prefill side to the decode side; an error where the two do not match.
  absl::StatusOr<PairPlan> plan;
};

/// What a room counts for in the core's ledger.
struct RoomGauges {
  bool live = false;    // state is not terminal
  bool opened = false;  // the engine knows of it
  RoomState state = RoomState::kBootstrapping;
  int64_t grants_held = 0;
  int64_t chunks_held = 0;
  int64_t offers_open = 0;
  int64_t seals = 0;
  int64_t moves = 0;
};

/// What both room machines have in common: names, clocks, states, what the engine is told.
///
/// Thread-compatible. Pure: time is an argument, effects go through RoomActions, which is borrowed.
/// A room that is `drained` is over; the core turns it into a tombstone.
class Room {
 public:
  virtual ~Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  const RoomKey& key() const { return key_; }
  /// Unique in the core, never used again.
  int64_t serial() const { return serial_; }
  Role role() const { return role_; }
  RoomState state() const { return state_; }
  bool terminal() const { return IsTerminal(state_); }
  bool drained() const { return drained_; }
  /// False for a grant without a send.
  bool opened() const { return opened_; }
  const absl::Status& error() const { return error_; }
  /// What the other side was told, or would have been.
  const absl::Status& tell() const { return tell_; }
  /// Null before the session is known.
  const std::shared_ptr<const PeerLink>& link() const { return link_; }
  bool IsOn(PeerId peer) const { return link_ != nullptr && link_->id == peer; }

  /// Ends the room without success; nothing happens to one that has ended.
  virtual void End(const Ending& ending, MonotonicTime now) = 0;
  /// When OnTimer wants to be called; InfiniteFuture once the room has ended.
  virtual MonotonicTime NextTimer() const = 0;
  virtual void OnTimer(MonotonicTime now) = 0;
  virtual RoomGauges Gauges() const = 0;
  virtual RoomView View(MonotonicTime now) const;

 protected:
  Room(Role role, const RoomKey& key, int64_t serial, std::shared_ptr<const OwnEngine> own,
       RoomActions& actions, MonotonicTime now)
      : role_(role),
        key_(key),
        serial_(serial),
        own_(std::move(own)),
        actions_(actions),
        opened_at_(now),
        state_since_(now) {}

  void SetState(RoomState state, MonotonicTime now);
  /// Tells the engine where the room stands, if it knows of it.
  void TellEngine(MonotonicTime now);
  /// To FAILED, and tells the engine at once.
  void Fail(const Ending& ending, MonotonicTime now);
  /// Marks drained and, for a failed room, tells the engine by the second event.
  void Drain(MonotonicTime now);
  /// What the room waits for, for people.
  virtual std::string WaitingFor() const = 0;

  const Role role_;
  RoomKey key_;
  const int64_t serial_;
  const std::shared_ptr<const OwnEngine> own_;
  RoomActions& actions_;
  std::shared_ptr<const PeerLink> link_;
  MonotonicTime opened_at_;
  MonotonicTime state_since_;
  MonotonicTime deadline_ = MonotonicTime::InfiniteFuture();
  RoomState state_ = RoomState::kBootstrapping;
  bool opened_ = false;
  bool drained_ = false;
  absl::Status error_;
  absl::Status tell_;
  int64_t pages_done_ = 0;
  ByteCount bytes_done_;

 private:
  virtual std::optional<MonotonicTime> granted_at() const { return std::nullopt; }
};

}  // namespace pageferry::agent
