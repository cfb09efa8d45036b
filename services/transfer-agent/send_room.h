#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/messages.h"
#include "services/transfer-agent/page_set.h"
#include "services/transfer-agent/room.h"

namespace pageferry::agent {

/// The prefill side of a room. Made by OpenSend or by a grant, whichever is first.
///
///   state          event                  new state      what happens
///   (none)         Open                   BOOTSTRAPPING  event; a dummy: WAITING_FOR_INPUT
///   (none)         Hold (grant)           BOOTSTRAPPING  nothing: an orphan until Open
///   BOOTSTRAPPING  Open after Hold        WAITING        event, PrefixKnown
///   BOOTSTRAPPING  OnGrant after Open     WAITING        event, PrefixKnown, held chunks as below
///   BOOTSTRAPPING  OnChunk                same           checked and held; too many: FAILED
///   WAITING        OnChunk                same           nothing to send: a prefix, or no pages
///   WAITING        OnChunk                TRANSFERRING   seal made, event, Offer (last: Completed)
///   TRANSFERRING   OnChunk                same           Offer (last: Completed)
///   WAITING        OnChunk, last, dummy   SUCCESS        event, drained
///   TRANSFERRING   OnTaken                same           progress kept
///   TRANSFERRING   OnTaken, complete      SUCCESS        seal broken, event, drained
///   any live       OnTaken not fitting    same, FAILED   refused; complete with other totals:
///   FAILED any live       a chunk against the rules, End, deadline
///                                         FAILED         event, Failed to the peer, seal broken,
///                                                        event with drained
///   SUCCESS, FAILED  anything             same           nothing
///
/// An orphan is unknown to the engine: it has no events, and its deadline tells the peer only.
///
/// Chunks: positions count pages of the prompt. Chunks are contiguous and the first begins at or
/// before the cached prefix; pages below that are not sent. At the last all granted pages must have
/// been sent. Pages are within the pool, each once a room. Aux and states come with the last, and
/// pair with the grant's.
class SendRoom final : public Room {
 public:
  SendRoom(const RoomKey& key, int64_t serial, std::shared_ptr<const OwnEngine> own,
           RoomActions& actions, int64_t max_held_chunks, MonotonicTime now)
      : Room(Role::kPrefill, key, serial, std::move(own), actions, now),
        max_held_chunks_(max_held_chunks) {}

  /// The engine will send. Once, before or after the grant.
  void Open(const OpenSend& send, MonotonicTime now);
  /// Keeps a grant that came before OpenSend, at most for `ttl`.
  void Hold(std::shared_ptr<const PeerLink> link, Sequence sequence, Grant grant,
            absl::Duration ttl, MonotonicTime now);
  /// The grant for a room that was opened; the room takes its attempt.
  void OnGrant(std::shared_ptr<const PeerLink> link, Sequence sequence, Grant grant,
               MonotonicTime now);
  void OnChunk(SendChunk chunk, MonotonicTime now);
  /// An error means that the frame is to be refused; the room goes on.
  absl::Status OnTaken(const Taken& taken, MonotonicTime now);

  void End(const Ending& ending, MonotonicTime now) override;
  MonotonicTime NextTimer() const override;
  void OnTimer(MonotonicTime now) override { End(DeadlinePassed(state_), now); }
  RoomGauges Gauges() const override;
  RoomView View(MonotonicTime now) const override;

  bool granted() const { return granted_; }
  /// The frame that the grant came in.
  Sequence grant_sequence() const { return grant_sequence_; }
  /// Both empty, or equal; in a time that does not depend on where they differ.
  bool SendCapabilityIs(const std::string& capability) const;
  bool GrantCapabilityIs(const std::string& capability) const;

 protected:
  std::string WaitingFor() const override;

 private:
  bool dummy() const { return dummy_send_ || grant_.dummy; }
  int64_t granted_pages() const { return granted_pages_; }
  void TakeGrant(std::shared_ptr<const PeerLink> link, Sequence sequence, Grant grant,
                 MonotonicTime now);
  void BeginWaiting(MonotonicTime now);
  absl::Status CheckChunk(const SendChunk& chunk);
  void HandleChunk(const SendChunk& chunk, MonotonicTime now);
  absl::Status CheckAgainstGrant(const SendChunk& chunk) const;
  void OfferChunk(const SendChunk& chunk, int64_t skipped, MonotonicTime now);
  void Succeed(MonotonicTime now);
  void Release();

  const int64_t max_held_chunks_;
  bool dummy_send_ = false;
  std::string capability_;
  bool granted_ = false;
  Grant grant_;
  Sequence grant_sequence_;
  int64_t granted_pages_ = 0;
  MonotonicTime grant_deadline_ = MonotonicTime::InfiniteFuture();

  PageSet named_;
  std::deque<SendChunk> held_;
  std::optional<int64_t> next_position_;  // of the chunks accepted so far
  bool first_handled_ = false;
  bool last_seen_ = false;

  std::optional<transport::SealRef> seal_;
  int64_t offers_ = 0;
  int64_t offered_pages_ = 0;
  ByteCount offered_bytes_;
  bool all_offered_ = false;
};

}  // namespace pageferry::agent
