#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "libs/common/page_runs.h"
#include "libs/common/status.h"
#include "services/transfer-agent/agent_core_impl.h"

namespace pageferry::agent {

std::shared_ptr<const PeerLink> AgentCore::Impl::MakeLink(PeerId peer, const PeerInfo& info) const {
  auto link = std::make_shared<PeerLink>(
      PeerLink{peer, info, SizesOf(info.engine.profile),
               absl::FailedPreconditionError("no engine is registered")});
  if (own_ != nullptr) {
    const KvProfile& own = own_->info.profile;
    const KvProfile& other = info.engine.profile;
    link->plan = info.dialled ? MakePairPlan(other, own) : MakePairPlan(own, other);
  }
  return link;
}

void AgentCore::Impl::OnPeerUp(PeerId peer, const PeerInfo& info) {
  peers_[peer].link = MakeLink(peer, info);
}

void AgentCore::Impl::OnPeerDown(PeerId peer, const absl::Status& why, MonotonicTime now) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  const Peer last = std::move(found->second);
  peers_.erase(found);
  if (last.rooms.empty()) return;
  const Ending ending = PeerHasGone(why);
  Tell(EngineLost{.engine = last.link->info.engine.engine_id,
                  .agent = last.link->info.agent,
                  .error = ending.own});
  for (const int64_t serial : last.rooms) {
    const auto tracked = tracked_.find(serial);
    if (tracked != tracked_.end()) EndAndSettle(*tracked->second.room, ending, now);
  }
}

void AgentCore::Impl::OnPeerFrame(PeerId peer, Sequence sequence, PeerFrame frame,
                                  MonotonicTime now) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  Peer& session = found->second;
  std::visit([&](auto& what) { Handle(session, sequence, std::move(what), now); }, frame);
}

void AgentCore::Impl::Refuse(const Peer& peer, Sequence sequence, const RoomKey& key,
                             const absl::Status& error) {
  ports_.probe.FrameRefused(ReasonOf(error));
  Send(peer.link->id, Refused{.sequence = sequence, .room = key, .error = error});
}

// --- which room ---

Room* AgentCore::Impl::RoomOn(const Peer& peer, const RoomKey& key) const {
  Room* room = nullptr;
  if (peer.link->info.dialled) {
    room = receives_.Find(key);
  } else {
    room = sends_.Find(key);
  }
  return room != nullptr && room->IsOn(peer.link->id) ? room : nullptr;
}

void AgentCore::Impl::RefuseUnknown(Peer& peer, Sequence sequence, const RoomKey& key) {
  if (tombstones_.Find(key) != nullptr) {
    ports_.probe.FrameRefused(Reason::kRoomNotFound);  // swallowed
    return;
  }
  Refuse(peer, sequence, key, RoomNotFound(key));
}

SendRoom* AgentCore::Impl::SendRoomFor(Peer& peer, Sequence sequence, const RoomKey& key) {
  Room* room = peer.link->info.dialled ? nullptr : RoomOn(peer, key);
  if (room == nullptr) RefuseUnknown(peer, sequence, key);
  return static_cast<SendRoom*>(room);
}

ReceiveRoom* AgentCore::Impl::ReceiveRoomFor(Peer& peer, Sequence sequence, const RoomKey& key) {
  Room* room = peer.link->info.dialled ? RoomOn(peer, key) : nullptr;
  if (room == nullptr) RefuseUnknown(peer, sequence, key);
  return static_cast<ReceiveRoom*>(room);
}

// --- grants ---

absl::Status AgentCore::Impl::CheckGrant(const PeerLink& link, const Grant& grant) const {
  PAGEFERRY_RETURN_IF_ERROR(CheckRole(Role::kPrefill));
  if (link.info.dialled) return InvalidField("frame", "grant", "from sessions that peers dialled");
  if (!engine_present_) {
    return MakeError(absl::StatusCode::kUnavailable, Reason::kEngineLost,
                     "the prefill engine has no session with its agent");
  }
  if (grant.room.attempt.value() < 1) {
    return InvalidField("room.attempt", absl::StrCat(grant.room.attempt.value()), "1 or more");
  }
  if (link.info.driver != transport::Driver::kTarget || grant.decode_rank_count != 1) {
    return MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                     "one decode rank a room, and transports that the target drives, so far",
                     {{"decode_rank_count", absl::StrCat(grant.decode_rank_count)}});
  }
  PAGEFERRY_RETURN_IF_ERROR(link.plan.status());
  if (grant.cached_prefix_pages < 0) {
    return InvalidField("cached_prefix_pages", absl::StrCat(grant.cached_prefix_pages),
                        "0 or more");
  }
  if (grant.dummy && !(grant.runs.empty() && grant.aux_slot == -1 && grant.states.empty())) {
    return InvalidField("dummy", "true", "true only without pages, aux and states");
  }
  if (grant.checksum) return ChecksumUnsupported();
  PAGEFERRY_RETURN_IF_ERROR(CheckPageRuns(grant.runs, link.sizes.pages));
  PAGEFERRY_RETURN_IF_ERROR(CheckAuxSlot(grant.aux_slot, link.sizes));
  return CheckStates(grant.states, link.sizes);
}

void AgentCore::Impl::Handle(Peer& peer, Sequence sequence, Grant grant, MonotonicTime now) {
  const RoomKey key = grant.room;
  absl::Status taken = CheckGrant(*peer.link, grant);
  if (taken.ok()) taken = TakeGrant(peer, sequence, grant, now);
  if (!taken.ok()) Refuse(peer, sequence, key, taken);
}

bool AgentCore::Impl::AnswerFromTombstone(const Peer& peer, const Grant& grant, MonotonicTime now) {
  RoomKey key = grant.room;
  Tombstone* tombstone = tombstones_.Find(key);
  if (tombstone == nullptr) {
    key = FirstKeyOf(key.id);
    tombstone = tombstones_.Find(key);
  }
  if (tombstone == nullptr || tombstone->grant_answer.ok()) return false;
  Send(peer.link->id, Failed{.room = grant.room, .error = tombstone->grant_answer});
  tombstone->grant_answer = absl::OkStatus();
  if (key != grant.room) tombstones_.Rename(key, grant.room, now);
  return true;
}

absl::Status AgentCore::Impl::TakeGrant(Peer& peer, Sequence sequence, Grant& grant,
                                        MonotonicTime now) {
  const RoomKey key = grant.room;
  SendRoom* waiting = nullptr;
  std::vector<SendRoom*> lower;
  for (SendRoom* room : sends_.AllOf(key.id)) {
    if (room->key() == key && room->granted()) {
      return MakeError(absl::StatusCode::kAlreadyExists, Reason::kDuplicateRoom,
                       "the room has a grant already; the first goes on");
    }
    if (room->key().attempt > key.attempt) return SupersededBy(room->key().attempt).own;
    const bool takes = room->key() == key || room->key().attempt.value() == 0;
    if (room->opened() && !room->SendCapabilityIs(grant.capability)) {
      return MakeError(absl::StatusCode::kPermissionDenied, Reason::kBadCapability,
                       "the room's capability differs");
    }
    if (takes) {
      waiting = room;
    } else {
      lower.push_back(room);
    }
  }
  const auto ended = tombstones_.HighestAttempt(key.id);
  if (waiting == nullptr && lower.empty() && (!ended.has_value() || *ended <= key.attempt) &&
      AnswerFromTombstone(peer, grant, now)) {
    return absl::OkStatus();
  }
  if (ended.has_value() && *ended >= key.attempt) return SupersededBy(*ended).own;
  const auto rooms_of_peer = static_cast<int64_t>(peer.rooms.size());
  if (rooms_of_peer >= limits_.max_rooms_of_peer) {
    return LimitReached("rooms_of_peer", rooms_of_peer);
  }
  if (waiting == nullptr) PAGEFERRY_RETURN_IF_ERROR(CheckRoomForNew());
  for (SendRoom* room : lower) EndAndSettle(*room, SupersededBy(key.attempt), now);
  if (waiting != nullptr) {
    waiting->OnGrant(peer.link, sequence, std::move(grant), now);
  } else {
    waiting = &AddSend(key, now);
    waiting->Hold(peer.link, sequence, std::move(grant), limits_.orphan_grant_ttl, now);
  }
  Settle(*waiting, now);
  return absl::OkStatus();
}

// --- the rest, from decode ---

void AgentCore::Impl::Handle(Peer& peer, Sequence sequence, const Taken& taken, MonotonicTime now) {
  SendRoom* room = SendRoomFor(peer, sequence, taken.room);
  if (room == nullptr) return;
  const absl::Status good = room->OnTaken(taken, now);
  Settle(*room, now);
  if (!good.ok()) Refuse(peer, sequence, taken.room, good);
}

// --- from prefill ---

void AgentCore::Impl::Handle(Peer& peer, Sequence sequence, const Offer& offer, MonotonicTime now) {
  ReceiveRoom* room = ReceiveRoomFor(peer, sequence, offer.room);
  if (room == nullptr) return;
  room->OnOffer(offer, now);
  Settle(*room, now);
}

void AgentCore::Impl::Handle(Peer& peer, Sequence sequence, const Completed& completed,
                             MonotonicTime now) {
  ReceiveRoom* room = ReceiveRoomFor(peer, sequence, completed.room);
  if (room == nullptr) return;
  const absl::Status good = room->OnCompleted(completed, now);
  Settle(*room, now);
  if (!good.ok()) Refuse(peer, sequence, completed.room, good);
}

void AgentCore::Impl::Handle(Peer& peer, Sequence sequence, const Failed& failed,
                             MonotonicTime now) {
  ReceiveRoom* room = ReceiveRoomFor(peer, sequence, failed.room);
  if (room != nullptr) EndAndSettle(*room, EndedByPeer(failed.error), now);
}

// --- both ways ---

SendRoom* AgentCore::Impl::WaitingFor(const Abort& abort) const {
  for (SendRoom* room : sends_.AllOf(abort.room.id)) {
    const bool named = room->key() == abort.room || room->key().attempt.value() == 0;
    if (named && room->opened() && !room->granted() && room->SendCapabilityIs(abort.capability)) {
      return room;
    }
  }
  return nullptr;
}

void AgentCore::Impl::Handle(Peer& peer, Sequence, const Abort& abort, MonotonicTime now) {
  Room* room = RoomOn(peer, abort.room);
  if (room == nullptr && !peer.link->info.dialled) room = WaitingFor(abort);
  AbortReply reply{.room = abort.room, .drained = true};
  if (room == nullptr) {
    reply.unknown = tombstones_.Find(abort.room) == nullptr;
    if (reply.unknown) ports_.probe.FrameRefused(Reason::kRoomNotFound);
  } else {
    const int64_t serial = room->serial();
    EndAndSettle(*room, EndedByPeer(abort.error), now);
    const auto left = tracked_.find(serial);
    reply.drained = left == tracked_.end();
    if (!reply.drained) left->second.owes_abort_reply = true;
  }
  Send(peer.link->id, std::move(reply));
}

void AgentCore::Impl::Handle(Peer& peer, Sequence, const AbortReply& reply, MonotonicTime now) {
  Room* room = RoomOn(peer, reply.room);
  if (room == nullptr || !peer.link->info.dialled) return;
  auto& receive = static_cast<ReceiveRoom&>(*room);
  receive.OnAbortReply(reply, now);
  Settle(receive, now);
}

void AgentCore::Impl::Handle(Peer& peer, Sequence, const Refused& refused, MonotonicTime now) {
  Room* room = RoomOn(peer, refused.room);
  if (room == nullptr) return;
  if (peer.link->info.dialled) {
    auto& receive = static_cast<ReceiveRoom&>(*room);
    receive.OnRefused(refused.error, now);
    Settle(receive, now);
  } else {
    EndAndSettle(*room, EndedByPeer(refused.error), now);  // decode has no such room
  }
}

void AgentCore::Impl::Handle(Peer& peer, Sequence, const GoAway& go_away, MonotonicTime) {
  peer.go_away = go_away.error.ok() ? MakeError(absl::StatusCode::kUnavailable, Reason::kDraining,
                                                "the peer is draining")
                                    : go_away.error;
}

}  // namespace pageferry::agent
