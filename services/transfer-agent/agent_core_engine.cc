#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"
#include "libs/common/status.h"
#include "services/transfer-agent/agent_core_impl.h"

namespace pageferry::agent {
namespace {

absl::Status DuplicateRoom(const RoomKey& key) {
  return MakeError(absl::StatusCode::kAlreadyExists, Reason::kDuplicateRoom,
                   absl::StrCat("room ", key.id.value(), " attempt ", key.attempt.value(),
                                " is live; the first goes on"));
}

}  // namespace

void AgentCore::Impl::OnEngineCommand(EngineCommand command, MonotonicTime now) {
  engine_present_ = true;
  std::visit([this, now](auto& what) { Handle(std::move(what), now); }, command);
}

void AgentCore::Impl::OnEngineGone(const absl::Status& why, MonotonicTime now) {
  engine_present_ = false;
  const Ending ending = EngineHasGone(why);
  std::vector<Room*> rooms;
  for (const auto& [key, room] : sends_.rooms()) rooms.push_back(room.get());
  for (const auto& [key, room] : receives_.rooms()) rooms.push_back(room.get());
  for (Room* room : rooms) EndAndSettle(*room, ending, now);
}

absl::Status AgentCore::Impl::CheckRole(Role role) const {
  if (own_ == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kEngineNotRegistered,
                     "no engine is registered");
  }
  if (own_->info.role == role) return absl::OkStatus();
  return InvalidField("role", own_->info.role == Role::kPrefill ? "prefill" : "decode",
                      role == Role::kPrefill ? "prefill" : "decode");
}

void AgentCore::Impl::RefuseCommand(const RoomKey& key, const char* command,
                                    const absl::Status& error) {
  ports_.probe.CommandWasRefused(ReasonOf(error));
  Tell(CommandRefused{.room = key, .command = command, .error = error});
}

std::vector<Room*> AgentCore::Impl::LiveOf(const RoomKey& key) const {
  std::vector<Room*> live;
  const auto add = [&](Room* room) {
    const bool named = key.attempt.value() == 0 || room->key() == key;
    if (named && !room->terminal()) live.push_back(room);
  };
  for (SendRoom* room : sends_.AllOf(key.id)) add(room);
  for (ReceiveRoom* room : receives_.AllOf(key.id)) add(room);
  return live;
}

bool AgentCore::Impl::HasEnded(const RoomKey& key) const {
  if (key.attempt.value() == 0) {
    return tombstones_.HighestAttempt(key.id).has_value() || !receives_.AllOf(key.id).empty();
  }
  const ReceiveRoom* draining = receives_.Find(key);
  return tombstones_.Find(key) != nullptr || (draining != nullptr && draining->terminal());
}

// --- prefill ---

void AgentCore::Impl::Handle(const OpenSend& send, MonotonicTime now) {
  if (const absl::Status opened = Open(send, now); !opened.ok()) {
    RefuseCommand(send.room, "open_send", opened);
  }
}

absl::Status AgentCore::Impl::Open(const OpenSend& send, MonotonicTime now) {
  PAGEFERRY_RETURN_IF_ERROR(CheckRole(Role::kPrefill));
  const Attempt attempt = send.room.attempt;
  const bool any = attempt.value() == 0;
  if (attempt.value() < 0) {
    return InvalidField("room.attempt", absl::StrCat(attempt.value()), "0 or more");
  }
  SendRoom* orphan = nullptr;
  std::vector<SendRoom*> lower;
  for (SendRoom* room : sends_.AllOf(send.room.id)) {
    const bool named = any || room->key() == send.room;
    if (named && room->opened()) return DuplicateRoom(room->key());
    if (named) {
      orphan = room;
    } else if (room->key().attempt > attempt) {
      return SupersededBy(room->key().attempt).own;
    } else {
      lower.push_back(room);
    }
  }
  if (!any) {
    const auto ended = tombstones_.HighestAttempt(send.room.id);
    if (ended.has_value() && *ended >= attempt) return SupersededBy(*ended).own;
  }
  if (orphan != nullptr && !orphan->GrantCapabilityIs(send.capability)) {
    const absl::Status error = MakeError(absl::StatusCode::kPermissionDenied,
                                         Reason::kBadCapability, "the room's capability differs");
    ports_.probe.FrameRefused(Reason::kBadCapability);
    Send(orphan->link()->id,
         Refused{.sequence = orphan->grant_sequence(), .room = orphan->key(), .error = error});
    Forget(*orphan);
    orphan = nullptr;
  }
  if (orphan == nullptr) PAGEFERRY_RETURN_IF_ERROR(CheckRoomForNew());
  for (SendRoom* room : lower) EndAndSettle(*room, SupersededBy(attempt), now);
  if (any) tombstones_.Remove(send.room);
  SendRoom& room = orphan != nullptr ? *orphan : AddSend(send.room, now);
  room.Open(send, now);
  Settle(room, now);
  return absl::OkStatus();
}

void AgentCore::Impl::Handle(SendChunk chunk, MonotonicTime now) {
  const RoomKey key = chunk.room;
  const std::vector<SendRoom*> attempts = sends_.AllOf(key.id);
  for (SendRoom* found : std::ranges::reverse_view(attempts)) {
    SendRoom& room = *found;
    if (!room.opened() || (key.attempt.value() != 0 && room.key() != key)) continue;
    room.OnChunk(std::move(chunk), now);
    Settle(room, now);
    return;
  }
  // The engine may not have read yet that the room has ended.
  if (HasEnded(key)) return;
  RefuseCommand(key, "send_chunk", RoomNotFound(key));
}

// --- decode ---

void AgentCore::Impl::Handle(OpenReceive receive, MonotonicTime now) {
  const RoomKey key = receive.room;
  if (const absl::Status opened = Open(std::move(receive), now); !opened.ok()) {
    RefuseCommand(key, "open_receive", opened);
  }
}

absl::Status AgentCore::Impl::Open(OpenReceive receive, MonotonicTime now) {
  PAGEFERRY_RETURN_IF_ERROR(CheckRole(Role::kDecode));
  PAGEFERRY_RETURN_IF_ERROR(CheckReceive(receive, own_->sizes));
  const RoomKey key = receive.room;
  std::vector<ReceiveRoom*> lower;
  for (ReceiveRoom* room : receives_.AllOf(key.id)) {
    if (room->key() == key && !room->terminal()) return DuplicateRoom(key);
    if (room->key().attempt >= key.attempt) return SupersededBy(room->key().attempt).own;
    lower.push_back(room);
  }
  const auto ended = tombstones_.HighestAttempt(key.id);
  if (ended.has_value() && *ended >= key.attempt) return SupersededBy(*ended).own;
  PAGEFERRY_RETURN_IF_ERROR(CheckRoomForNew());
  for (ReceiveRoom* room : lower) EndAndSettle(*room, SupersededBy(key.attempt), now);
  PAGEFERRY_RETURN_IF_ERROR(granted_.Add(receive, own_->sizes));
  if (const auto search = farewells_.Drop(key.id)) ports_.finder.Cancel(*search);

  const RankQuery query{.engine = receive.prefill_engine,
                        .room = key.id,
                        .shape = own_->info.shape,
                        .coordinate = own_->info.coordinate,
                        .dp_rank = receive.prefill_dp_rank};
  ReceiveRoom& room = AddReceive(key, now);
  room.Open(std::move(receive), now);
  const int64_t ticket = ++last_ticket_;
  finds_.emplace(ticket, room.serial());
  tracked_.at(room.serial()).find_ticket = ticket;
  Settle(room, now);
  ports_.finder.Find(ticket, query, room.deadline());
  return absl::OkStatus();
}

// --- both ---

void AgentCore::Impl::Handle(const AbortCommand& abort, MonotonicTime now) {
  EndByEngine(abort.room, "abort", AbortedByEngine(abort.detail), now);
}

void AgentCore::Impl::Handle(const FailCommand& fail, MonotonicTime now) {
  EndByEngine(fail.room, "fail_room", FailedByEngine(fail.detail), now);
}

void AgentCore::Impl::EndByEngine(const RoomKey& key, const char* command, const Ending& ending,
                                  MonotonicTime now) {
  const std::vector<Room*> live = LiveOf(key);
  for (Room* room : live) {
    const RoomKey real = room->key();
    const bool opened = room->opened();
    EndAndSettle(*room, ending, now);
    if (!opened) TellFailedUnopened(real, ending.own);
  }
  if (!live.empty() || HasEnded(key)) return;
  if (const absl::Status prefill = CheckRole(Role::kPrefill); !prefill.ok()) {
    RefuseCommand(key, command, RoomNotFound(key));
    return;
  }
  // The prompt was rejected before the room was opened: its grant, when it comes, is answered.
  tombstones_.Add(
      key,
      {.view = std::make_unique<RoomView>(RoomView{
           .room = key, .state = RoomState::kFailed, .drained = true, .error = ending.own}),
       .ended = now,
       .grant_answer = ending.tell},
      now);
  TellFailedUnopened(key, ending.own);
}

void AgentCore::Impl::TellFailedUnopened(const RoomKey& key, const absl::Status& error) {
  RoomEvent event{.room = key, .state = RoomState::kFailed, .drained = false, .error = error};
  Tell(event);
  event.drained = true;
  Tell(std::move(event));
}

void AgentCore::Impl::Handle(const CloseRoom& close, MonotonicTime /*now*/) {
  const bool any = close.room.attempt.value() == 0;
  const bool held =
      any ? !sends_.AllOf(close.room.id).empty() || !receives_.AllOf(close.room.id).empty()
          : sends_.Find(close.room) != nullptr || receives_.Find(close.room) != nullptr;
  if (!held) {
    tombstones_.Close(close.room);
    return;
  }
  RefuseCommand(close.room, "close_room",
                MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse,
                          "the room is not drained", {{"by", "room"}}));
}

}  // namespace pageferry::agent
