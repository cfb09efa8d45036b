#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/messages.h"
#include "services/transfer-agent/room.h"

namespace pageferry::agent {

/// The decode side of a room. Made by OpenReceive.
///
///   state          event                    new state      what happens
///   (none)         Open                     BOOTSTRAPPING  event; the core looks for the peer
///   BOOTSTRAPPING  OnPeerFound              WAITING        Grant, event
///   BOOTSTRAPPING  OnPeerFound, error       FAILED         as below
///   WAITING        OnOffer                  TRANSFERRING   event, move started
///   TRANSFERRING   OnOffer                  same           move started
///   TRANSFERRING   OnMoveDone, OK           same           Taken
///   TRANSFERRING   OnMoveDone, OK, all in place and Completed agrees
///                                           SUCCESS        event with drained, Taken{complete}
///   TRANSFERRING   OnCompleted              same, SUCCESS  as above when it was all that missed
///   any live       Completed disagrees, an offer against the rules
///                                           FAILED         as below
///   TRANSFERRING   OnMoveDone, SEAL_BROKEN  same           other moves are cancelled; waits for
///   the
///                                                          reason kSealGrace, then FAILED
///   any live       OnMoveDone, other error  FAILED         as below
///   WAITING        OnRefused                FAILED         the grant found no room: as below
///   any live       End, deadline            FAILED         event, moves cancelled, Abort to a peer
///                                                          that has the grant; then, when no move
///                                                          runs, event with drained
///   FAILED         OnMoveDone, the last     same           event with drained
///   SUCCESS, FAILED  anything else          same           nothing
///
/// Where the source drives, drained needs the peer's AbortReply as well; it alone can tell that
/// nothing more is written.
class ReceiveRoom final : public Room {
 public:
  /// How long the reason for a broken seal, which travels right behind, is waited for.
  static constexpr absl::Duration kSealGrace = absl::Seconds(1);

  ReceiveRoom(int64_t serial, std::shared_ptr<const OwnEngine> own, RoomActions& actions,
              MonotonicTime now)
      : Room(Role::kDecode, RoomKey{}, serial, std::move(own), actions, now) {}

  /// `receive` has been checked (CheckReceive). Once.
  void Open(OpenReceive receive, MonotonicTime now);
  MonotonicTime deadline() const { return deadline_; }

  /// What the engine asked for; its pages may be written until the room is drained.
  const OpenReceive& request() const { return receive_; }

  void OnPeerFound(std::shared_ptr<const PeerLink> link, MonotonicTime now);
  void OnOffer(const Offer& offer, MonotonicTime now);
  /// An error means that the frame is to be refused; the room goes on.
  absl::Status OnCompleted(const Completed& completed, MonotonicTime now);
  void OnMoveDone(int64_t ticket, const absl::Status& status, MonotonicTime now);
  /// The peer refused a frame of the room. Only a grant's refusal matters.
  void OnRefused(const absl::Status& error, MonotonicTime now);
  void OnAbortReply(const AbortReply& reply, MonotonicTime now);

  void End(const Ending& ending, MonotonicTime now) override;
  MonotonicTime NextTimer() const override;
  void OnTimer(MonotonicTime now) override;
  RoomGauges Gauges() const override;
  RoomView View(MonotonicTime now) const override;

 protected:
  std::string WaitingFor() const override;

 private:
  struct Move {
    int64_t pages = 0;
    ByteCount bytes;
    MonotonicTime started;
  };

  std::optional<MonotonicTime> granted_at() const override { return granted_at_; }
  absl::Status CheckOffer(const Offer& offer) const;
  absl::Status StartMove(const Offer& offer, MonotonicTime now);
  bool SucceedIfAllIsThere(MonotonicTime now);
  void DrainIfQuiet(MonotonicTime now);

  OpenReceive receive_;
  int64_t granted_pages_ = 0;
  std::optional<MonotonicTime> granted_at_;
  int64_t offered_pages_ = 0;
  bool last_offered_ = false;
  std::optional<Completed> completed_;
  absl::flat_hash_map<int64_t, Move> moves_;  // by ticket
  std::shared_ptr<transport::CancelToken> cancel_ = std::make_shared<transport::CancelToken>();
  absl::Status broken_;  // what the mover said when the seal was broken
  MonotonicTime broken_until_ = MonotonicTime::InfiniteFuture();
  bool needs_abort_reply_ = false;
};

/// What can be told without a peer. kInvalidArgument: INVALID_FIELD, BAD_PAGES.
absl::Status CheckReceive(const OpenReceive& receive, const ProfileSizes& own);

}  // namespace pageferry::agent
