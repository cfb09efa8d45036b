#include "services/transfer-agent/agent_core.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/agent_core_impl.h"

namespace pageferry::agent {
namespace {

constexpr size_t kTimersAtOnce = 1024;
constexpr int64_t kTombstonesAtOnce = 4096;

}  // namespace

AgentCore::Impl::Impl(const CoreLimits& limits, Ports ports)
    : limits_(limits), ports_(ports), tombstones_(limits.max_tombstones, limits.tombstone_ttl) {}

void AgentCore::Impl::SetEngine(const EngineInfo& engine, const AgentRef& self) {
  own_ = std::make_shared<OwnEngine>(OwnEngine{engine, SizesOf(engine.profile)});
  self_ = self;
  engine_present_ = true;
  for (auto& [id, peer] : peers_) peer.link = MakeLink(id, peer.link->info);
}

int64_t AgentCore::Impl::StartMove(int64_t serial, PeerId peer, transport::Batch batch) {
  const int64_t ticket = ++last_ticket_;
  moves_.emplace(ticket, serial);
  ports_.mover.Start(ticket, peer, std::move(batch));
  return ticket;
}

SendRoom& AgentCore::Impl::AddSend(const RoomKey& key, MonotonicTime now) {
  SendRoom& room = sends_.Add(
      std::make_unique<SendRoom>(key, ++last_serial_, own_, static_cast<RoomActions&>(*this),
                                 limits_.max_held_chunks, now),
      key);
  Track(room, key);
  return room;
}

ReceiveRoom& AgentCore::Impl::AddReceive(const RoomKey& key, MonotonicTime now) {
  ReceiveRoom& room = receives_.Add(
      std::make_unique<ReceiveRoom>(++last_serial_, own_, static_cast<RoomActions&>(*this), now),
      key);
  Track(room, key);
  return room;
}

void AgentCore::Impl::Track(Room& room, const RoomKey& key) {
  tracked_.emplace(room.serial(), Tracked{.room = &room, .key = key});
  WatchLimit();
}

void AgentCore::Impl::Settle(Room& room, MonotonicTime now) {
  const auto found = tracked_.find(room.serial());
  Tracked& tracked = found->second;
  const RoomGauges gauges = room.Gauges();
  Count(room.role(), tracked.counted, gauges);
  tracked.counted = gauges;
  if (tracked.key != room.key()) {
    sends_.Rename(tracked.key, room.key());  // receives never change theirs
    tracked.key = room.key();
  }
  if (room.link() != nullptr && !tracked.peer.has_value()) {
    tracked.peer = room.link()->id;
    if (const auto peer = peers_.find(*tracked.peer); peer != peers_.end()) {
      peer->second.rooms.insert(room.serial());
    }
  }
  if (room.terminal() && tracked.find_ticket.has_value()) {
    EndSearch(room, *tracked.find_ticket);
    tracked.find_ticket.reset();
  }
  if (const MonotonicTime timer = room.NextTimer(); timer != tracked.timer) {
    tracked.timer = timer;
    if (timer == MonotonicTime::InfiniteFuture()) {
      timers_.Revoke(room.serial());
    } else {
      timers_.Grant(room.serial(), timer - now, now);
    }
  }
  if (!room.drained()) return;
  Tracked last = std::move(tracked);
  tracked_.erase(found);
  Bury(room, last, now);
}

void AgentCore::Impl::Count(Role role, const RoomGauges& before, const RoomGauges& after) {
  totals_.grants_held += after.grants_held - before.grants_held;
  totals_.chunks_held += after.chunks_held - before.chunks_held;
  totals_.offers_open += after.offers_open - before.offers_open;
  totals_.seals += after.seals - before.seals;
  totals_.moves += after.moves - before.moves;
  if (before.live) --by_state_[{role, before.state}];
  if (after.live) ++by_state_[{role, after.state}];
}

void AgentCore::Impl::Bury(Room& room, const Tracked& tracked, MonotonicTime now) {
  if (tracked.owes_abort_reply && tracked.peer.has_value()) {
    Send(*tracked.peer, AbortReply{.room = room.key(), .drained = true});
  }
  Tombstone tombstone{.view = std::make_unique<RoomView>(room.View(now)), .ended = now};
  const bool superseded = ReasonOf(room.error()) == Reason::kStaleAttempt;
  if (room.role() == Role::kPrefill && room.link() == nullptr && !superseded) {
    tombstone.grant_answer = room.tell();
  }
  tombstones_.Add(room.key(), std::move(tombstone), now);
  Remove(room, tracked);
}

void AgentCore::Impl::EndSearch(const Room& room, int64_t ticket) {
  finds_.erase(ticket);
  if (room.tell().ok() || farewells_.size() >= limits_.max_rooms) {
    return ports_.finder.Cancel(ticket);
  }
  const OpenReceive& request = static_cast<const ReceiveRoom&>(room).request();
  farewells_.Add(ticket,
                 Abort{.room = room.key(), .error = room.tell(), .capability = request.capability});
}

void AgentCore::Impl::Forget(Room& room) {
  const auto found = tracked_.find(room.serial());
  const Tracked last = std::move(found->second);
  tracked_.erase(found);
  Count(room.role(), last.counted, RoomGauges{});
  timers_.Revoke(room.serial());
  Remove(room, last);
}

void AgentCore::Impl::Remove(Room& room, const Tracked& tracked) {
  if (tracked.peer.has_value()) {
    const auto peer = peers_.find(*tracked.peer);
    if (peer != peers_.end()) peer->second.rooms.erase(room.serial());
  }
  const RoomKey key = room.key();  // the room goes with its place
  if (room.role() == Role::kPrefill) {
    sends_.Erase(key);
  } else {
    granted_.Remove(static_cast<ReceiveRoom&>(room).request());
    receives_.Erase(key);
  }
  WatchLimit();
}

void AgentCore::Impl::WatchLimit() {
  const int64_t rooms = LiveRooms();
  const bool press = rooms * 10 >= limits_.max_rooms * 9;
  const bool release = rooms * 10 <= limits_.max_rooms * 8;
  if (pressed_ ? !release : !press) return;
  pressed_ = !pressed_;
  Tell(Backpressure{.engaged = pressed_, .limit = "rooms"});
}

void AgentCore::Impl::EndAndSettle(Room& room, const Ending& ending, MonotonicTime now) {
  room.End(ending, now);
  Settle(room, now);
}

absl::Status AgentCore::Impl::CheckRoomForNew() const {
  if (draining_) {
    return MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "the agent is draining");
  }
  if (LiveRooms() >= limits_.max_rooms) return LimitReached("rooms", LiveRooms());
  return absl::OkStatus();
}

void AgentCore::Impl::OnPeerFound(int64_t ticket, absl::StatusOr<PeerId> peer, MonotonicTime now) {
  if (std::optional<Abort> farewell = farewells_.Take(ticket); farewell.has_value()) {
    if (peer.ok() && peers_.contains(*peer)) Send(*peer, *std::move(farewell));
    return;
  }
  const auto found = finds_.find(ticket);
  if (found == finds_.end()) return;
  const auto tracked = tracked_.find(found->second);
  finds_.erase(found);
  if (tracked == tracked_.end()) return;
  tracked->second.find_ticket.reset();
  auto& room = static_cast<ReceiveRoom&>(*tracked->second.room);
  if (!peer.ok()) {
    EndAndSettle(room, {.own = peer.status(), .tell = absl::OkStatus()}, now);
    return;
  }
  const auto session = peers_.find(*peer);
  if (session == peers_.end()) {
    EndAndSettle(room, PeerHasGone(absl::UnavailableError("before the grant")), now);
  } else if (!session->second.go_away.ok()) {
    EndAndSettle(room, {.own = session->second.go_away, .tell = absl::OkStatus()}, now);
  } else if (session->second.link->info.driver != transport::Driver::kTarget) {
    const absl::Status unsupported =
        MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                  "transports that the source drives are not supported yet");
    EndAndSettle(room, {.own = unsupported, .tell = absl::OkStatus()}, now);
  } else if (const int64_t credit = session->second.link->info.room_credit;
             credit > 0 && std::ssize(session->second.rooms) >= credit) {
    EndAndSettle(room, {.own = LimitReached("rooms_of_peer", credit), .tell = absl::OkStatus()},
                 now);
  } else {
    room.OnPeerFound(session->second.link, now);
    Settle(room, now);
  }
}

void AgentCore::Impl::OnMoveDone(int64_t ticket, const absl::Status& status, MonotonicTime now) {
  const auto found = moves_.find(ticket);
  if (found == moves_.end()) return;
  const auto tracked = tracked_.find(found->second);
  moves_.erase(found);
  if (tracked == tracked_.end()) return;
  auto& room = static_cast<ReceiveRoom&>(*tracked->second.room);
  room.OnMoveDone(ticket, status, now);
  Settle(room, now);
}

MonotonicTime AgentCore::Impl::NextDeadline() const {
  return std::min(timers_.NextExpiry(), tombstones_.NextExpiry());
}

void AgentCore::Impl::OnTime(MonotonicTime now) {
  for (const int64_t serial : timers_.ExpireUpTo(now, kTimersAtOnce)) {
    const auto found = tracked_.find(serial);
    if (found == tracked_.end()) continue;
    found->second.timer = MonotonicTime::InfiniteFuture();
    Room& room = *found->second.room;
    room.OnTimer(now);
    Settle(room, now);
  }
  tombstones_.Expire(now, kTombstonesAtOnce);
}

AgentCore::AgentCore(const CoreLimits& limits, Ports ports)
    : impl_(std::make_unique<Impl>(limits, ports)) {}
AgentCore::~AgentCore() = default;
void AgentCore::SetEngine(const EngineInfo& engine, const AgentRef& self) {
  impl_->SetEngine(engine, self);
}
void AgentCore::SetSelf(const AgentRef& self) { impl_->SetSelf(self); }
void AgentCore::OnEngineUp() { impl_->OnEngineUp(); }
void AgentCore::OnEngineCommand(EngineCommand command, MonotonicTime now) {
  impl_->OnEngineCommand(std::move(command), now);
}
void AgentCore::OnEngineGone(const absl::Status& why, MonotonicTime now) {
  impl_->OnEngineGone(why, now);
}
void AgentCore::OnPeerUp(PeerId peer, const PeerInfo& info, MonotonicTime) {
  impl_->OnPeerUp(peer, info);
}
void AgentCore::OnPeerFrame(PeerId peer, Sequence sequence, PeerFrame frame, MonotonicTime now) {
  impl_->OnPeerFrame(peer, sequence, std::move(frame), now);
}
void AgentCore::OnPeerDown(PeerId peer, const absl::Status& why, MonotonicTime now) {
  impl_->OnPeerDown(peer, why, now);
}
void AgentCore::OnPeerFound(int64_t ticket, absl::StatusOr<PeerId> peer, MonotonicTime now) {
  impl_->OnPeerFound(ticket, std::move(peer), now);
}
void AgentCore::OnMoveDone(int64_t ticket, const absl::Status& status, MonotonicTime now) {
  impl_->OnMoveDone(ticket, status, now);
}
MonotonicTime AgentCore::NextDeadline() const { return impl_->NextDeadline(); }
void AgentCore::OnTime(MonotonicTime now) { impl_->OnTime(now); }
std::vector<RoomView> AgentCore::ListRooms(std::optional<RoomKey> after, int64_t limit,
                                           MonotonicTime now) const {
  return impl_->ListRooms(after, limit, now);
}
absl::StatusOr<RoomView> AgentCore::GetRoom(RoomKey room, MonotonicTime now) const {
  return impl_->GetRoom(room, now);
}
absl::Status AgentCore::AbortRoom(RoomKey room, const std::string& detail, MonotonicTime now) {
  return impl_->AbortRoom(room, detail, now);
}
void AgentCore::StartDrain() { impl_->StartDrain(); }
int64_t AgentCore::LiveRooms() const { return impl_->LiveRooms(); }
std::map<std::string, int64_t> AgentCore::Ledger() const { return impl_->Ledger(); }
std::map<std::pair<Role, RoomState>, int64_t> AgentCore::RoomsByState() const {
  return impl_->RoomsByState();
}
int64_t AgentCore::RoomsOfPeer(PeerId peer) const { return impl_->RoomsOfPeer(peer); }

}  // namespace pageferry::agent
