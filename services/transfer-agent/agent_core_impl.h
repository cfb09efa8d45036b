#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/ids.h"
#include "libs/common/lease_table.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/farewells.h"
#include "services/transfer-agent/granted_set.h"
#include "services/transfer-agent/receive_room.h"
#include "services/transfer-agent/room.h"
#include "services/transfer-agent/room_table.h"
#include "services/transfer-agent/send_room.h"
#include "services/transfer-agent/tombstones.h"

namespace pageferry::agent {

/// Cut by who speaks: agent_core_engine.cc (commands), agent_core_peers.cc (sessions and frames),
/// agent_core_views.cc (operators), agent_core.cc (what all share: tracking, time, answers).
///
/// Each handler finds the room, lets it act, and calls Settle: that one place brings tables,
/// timers, counts and tombstones in line with what the room says of itself, so that no handler has
/// to.
class AgentCore::Impl final : private RoomActions {
 public:
  Impl(const CoreLimits& limits, Ports ports);

  void SetEngine(const EngineInfo& engine, const AgentRef& self);
  void SetSelf(const AgentRef& self) { self_ = self; }
  void OnEngineUp() {
    engine_present_ = true;
    if (pressed_) Tell(Backpressure{.engaged = true, .limit = "rooms"});
  }
  void OnEngineGone(const absl::Status& why, MonotonicTime now);
  void OnEngineCommand(EngineCommand command, MonotonicTime now);

  void OnPeerUp(PeerId peer, const PeerInfo& info);
  void OnPeerFrame(PeerId peer, Sequence sequence, PeerFrame frame, MonotonicTime now);
  void OnPeerDown(PeerId peer, const absl::Status& why, MonotonicTime now);

  void OnPeerFound(int64_t ticket, absl::StatusOr<PeerId> peer, MonotonicTime now);
  void OnMoveDone(int64_t ticket, const absl::Status& status, MonotonicTime now);

  MonotonicTime NextDeadline() const;
  void OnTime(MonotonicTime now);

  std::vector<RoomView> ListRooms(std::optional<RoomKey> after, int64_t limit,
                                  MonotonicTime now) const;
  absl::StatusOr<RoomView> GetRoom(RoomKey room, MonotonicTime now) const;
  absl::Status AbortRoom(RoomKey room, const std::string& detail, MonotonicTime now);
  void StartDrain() { draining_ = true; }
  int64_t LiveRooms() const { return static_cast<int64_t>(tracked_.size()); }
  std::map<std::string, int64_t> Ledger() const;
  std::map<std::pair<Role, RoomState>, int64_t> RoomsByState() const;
  int64_t RoomsOfPeer(PeerId peer) const;

 private:
  /// A room as tables, timers and counts know it; `counted` is what it was at the last Settle.
  struct Tracked {
    Room* room = nullptr;
    RoomKey key;
    RoomGauges counted;
    std::optional<PeerId> peer;
    MonotonicTime timer = MonotonicTime::InfiniteFuture();
    std::optional<int64_t> find_ticket;
    bool owes_abort_reply = false;
  };
  struct Peer {
    std::shared_ptr<const PeerLink> link;
    absl::btree_set<int64_t> rooms;  // serials
    absl::Status go_away;
  };

  // RoomActions
  void Tell(EngineEvent event) override { ports_.engine.Send(std::move(event)); }
  void Send(PeerId peer, PeerFrame frame) override { ports_.peers.Send(peer, std::move(frame)); }
  absl::StatusOr<transport::SealRef> MakeSeal() override { return ports_.seals.Make(); }
  void BreakSeal(const transport::SealRef& seal) override { ports_.seals.Break(seal); }
  int64_t StartMove(int64_t serial, PeerId peer, transport::Batch batch) override;
  CoreProbe& probe() override { return ports_.probe; }

  // agent_core.cc
  SendRoom& AddSend(const RoomKey& key, MonotonicTime now);
  ReceiveRoom& AddReceive(const RoomKey& key, MonotonicTime now);
  void Track(Room& room, const RoomKey& key);
  /// To be called after each thing that happens to a room; it is gone afterwards if it is drained.
  void Settle(Room& room, MonotonicTime now);
  void Count(Role role, const RoomGauges& before, const RoomGauges& after);
  void Bury(Room& room, const Tracked& tracked, MonotonicTime now);
  /// Ends the search of a room that is over, unless its peer is to be told when it is found.
  void EndSearch(const Room& room, int64_t ticket);
  /// Drops a room as if it had never been: no tombstone.
  void Forget(Room& room);
  /// Takes it out of all tables but tombstones.
  void Remove(Room& room, const Tracked& tracked);
  /// Engages or releases backpressure.
  void WatchLimit();
  void EndAndSettle(Room& room, const Ending& ending, MonotonicTime now);
  /// LIMIT_REACHED or DRAINING, if no new room may be made.
  absl::Status CheckRoomForNew() const;

  // agent_core_engine.cc
  void Handle(const OpenSend& send, MonotonicTime now);
  void Handle(SendChunk chunk, MonotonicTime now);
  void Handle(OpenReceive receive, MonotonicTime now);
  void Handle(const AbortCommand& abort, MonotonicTime now);
  void Handle(const FailCommand& fail, MonotonicTime now);
  void Handle(const CloseRoom& close, MonotonicTime now);
  absl::Status Open(const OpenSend& send, MonotonicTime now);
  absl::Status Open(OpenReceive receive, MonotonicTime now);
  void EndByEngine(const RoomKey& key, const char* command, const Ending& ending,
                   MonotonicTime now);
  /// Both events of a room that failed without having been opened.
  void TellFailedUnopened(const RoomKey& key, const absl::Status& error);
  void RefuseCommand(const RoomKey& key, const char* command, const absl::Status& error);
  absl::Status CheckRole(Role role) const;
  /// `key` itself, or for attempt 0 all attempts, that have not ended.
  std::vector<Room*> LiveOf(const RoomKey& key) const;
  bool HasEnded(const RoomKey& key) const;

  // agent_core_peers.cc
  void Handle(Peer& peer, Sequence sequence, Grant grant, MonotonicTime now);
  void Handle(Peer& peer, Sequence sequence, const Taken& taken, MonotonicTime now);
  void Handle(Peer& peer, Sequence sequence, const Offer& offer, MonotonicTime now);
  void Handle(Peer& peer, Sequence sequence, const Completed& completed, MonotonicTime now);
  void Handle(Peer& peer, Sequence sequence, const Failed& failed, MonotonicTime now);
  void Handle(Peer& peer, Sequence sequence, const Abort& abort, MonotonicTime now);
  void Handle(Peer& peer, Sequence sequence, const AbortReply& reply, MonotonicTime now);
  void Handle(Peer& peer, Sequence sequence, const Refused& refused, MonotonicTime now);
  void Handle(Peer& peer, Sequence sequence, const GoAway& go_away, MonotonicTime now);
  std::shared_ptr<const PeerLink> MakeLink(PeerId peer, const PeerInfo& info) const;
  absl::Status CheckGrant(const PeerLink& link, const Grant& grant) const;
  /// Where the grant belongs. An error is to be refused; null with OK is a new room.
  absl::Status TakeGrant(Peer& peer, Sequence sequence, Grant& grant, MonotonicTime now);
  /// Answers a grant whose room failed before it came. False where there is none such.
  bool AnswerFromTombstone(const Peer& peer, const Grant& grant, MonotonicTime now);
  /// The room that waits for a grant which `abort` says will not come.
  SendRoom* WaitingFor(const Abort& abort) const;
  /// The room that a frame of `peer` names; else refuses or swallows the frame.
  SendRoom* SendRoomFor(Peer& peer, Sequence sequence, const RoomKey& key);
  ReceiveRoom* ReceiveRoomFor(Peer& peer, Sequence sequence, const RoomKey& key);
  Room* RoomOn(const Peer& peer, const RoomKey& key) const;
  void RefuseUnknown(Peer& peer, Sequence sequence, const RoomKey& key);
  void Refuse(const Peer& peer, Sequence sequence, const RoomKey& key, const absl::Status& error);

  const CoreLimits limits_;
  Ports ports_;
  AgentRef self_;
  std::shared_ptr<const OwnEngine> own_;
  bool engine_present_ = true;
  bool draining_ = false;
  bool pressed_ = false;

  RoomTable<SendRoom> sends_;
  RoomTable<ReceiveRoom> receives_;
  GrantedSet granted_;  // of receives_
  Tombstones tombstones_;
  absl::flat_hash_map<int64_t, Tracked> tracked_;  // by serial
  absl::btree_map<PeerId, Peer> peers_;
  absl::flat_hash_map<int64_t, int64_t> finds_;  // ticket -> serial
  Farewells farewells_;                          // by ticket
  absl::flat_hash_map<int64_t, int64_t> moves_;  // ticket -> serial
  LeaseTable<int64_t> timers_;                   // serial, until its next timer
  int64_t last_serial_ = 0;
  int64_t last_ticket_ = 0;

  RoomGauges totals_;  // of the numbers only
  std::map<std::pair<Role, RoomState>, int64_t> by_state_;
};

}  // namespace pageferry::agent
