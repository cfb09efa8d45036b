// The engine's session: its commands in, its events out.
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/log.h"
#include "services/transfer-agent/convert_profile.h"
#include "services/transfer-agent/engine_host.h"
#include "services/transfer-agent/room_ending.h"

namespace pageferry::agent {
namespace {

LogArea log_area("engine");

}  // namespace

void EngineHost::OnFrame(const std::shared_ptr<EngineStream>& stream, EngineFrame frame) {
  absl::Status status = frame.error;
  const bool opens = status.ok() && std::holds_alternative<OpenSession>(frame.commands.front());
  if (status.ok() && stream != session_) {
    status = opens && frame.commands.size() == 1
                 ? OpenNow(stream, std::get<OpenSession>(frame.commands.front()))
                 : MakeError(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder,
                             "the first frame has exactly one command, open");
    if (!status.ok()) stream->End(status, true);
    return;  // FinishOpen reads on
  }
  for (auto& command : frame.commands) {
    if (!status.ok()) break;
    if (auto* const parsed = std::get_if<ParsedCommand>(&command)) {
      Run(std::move(*parsed));
    } else {
      status = MakeError(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder,
                         "the session is open already");
    }
  }
  if (!status.ok()) {
    if (stream == session_) return EndSession(status, true);
    return stream->End(status, true);
  }
  stream->ReadNext();
}

absl::Status EngineHost::OpenNow(const std::shared_ptr<EngineStream>& stream,
                                 const OpenSession& open) {
  if (!parts_.own.registered) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kEngineNotRegistered,
                     "no engine is registered");
  }
  if (open.engine_id != parts_.own.engine.engine_id.value()) {
    return InvalidField("open.engine_id", absl::string_view(open.engine_id).substr(0, 128),
                        parts_.own.engine.engine_id.value());
  }
  if (session_ != nullptr || opening_ != nullptr) {
    return MakeError(absl::StatusCode::kAlreadyExists, Reason::kEngineAlreadyRegistered,
                     "another session is open");
  }
  TellGone();
  grace_timer_.Clear();
  opening_ = stream;
  client_ = open.client;
  FinishOpen();
  return absl::OkStatus();
}

void EngineHost::FinishOpen() {
  // The engine that comes back does not know the rooms of the one before, so it must not use a page
  // while a copy for one of them may still run. That is a slice at most.
  if (opening_ == nullptr || core_->LiveRooms() > 0) return;
  session_ = std::move(opening_);
  opening_ = nullptr;
  had_session_ = true;
  // It may have declared the seals of the session before void.
  parts_.pools.BreakSeals();
  Log(LogLevel::kInfo, log_area, "session_opened",
      {{"engine", parts_.own.engine.engine_id}, {"client", client_}});
  agent_pb::AgentEvent event;
  ToProto(parts_.own.agent, *event.mutable_opened()->mutable_agent());
  event.mutable_opened()->set_state(static_cast<agent_pb::AgentState>(state()));
  const std::shared_ptr<EngineStream> stream = session_;
  Put(std::move(event));
  core_->OnEngineUp();
  stream->ReadNext();
  on_change_();
}

void EngineHost::Run(ParsedCommand command) {
  if (!command.command.ok()) {
    parts_.probe.CommandWasRefused(ReasonOf(command.command.status()));
    return Send(CommandRefused{
        .room = command.room, .command = command.name, .error = command.command.status()});
  }
  const auto* const send = std::get_if<OpenSend>(&*command.command);
  if (send != nullptr && parts_.own.engine.dp_by_directory && parts_.own.engine.shape.dp > 1) {
    parts_.placer.Place(send->room.id);
  }
  core_->OnEngineCommand(*std::move(command.command), parts_.loop.Now());
}

void EngineHost::OnStreamEnded(const std::shared_ptr<EngineStream>& stream,
                               const absl::Status& why) {
  if (stream == session_) return EndSession(why, true);
  if (stream == opening_) {
    opening_ = nullptr;
    AwaitSession();
  }
  stream->End(absl::OkStatus(), false);
}

void EngineHost::EndSession(const absl::Status& why, bool flush) {
  if (session_ == nullptr) return;
  Log(LogLevel::kInfo, log_area, "session_closed",
      {{"engine", parts_.own.engine.engine_id}, {"why", why}});
  const std::shared_ptr<EngineStream> stream = std::move(session_);
  session_ = nullptr;
  stream->End(why, flush);
  AwaitSession();
  gone_ = MakeError(absl::StatusCode::kUnavailable, Reason::kEngineLost,
                    why.ok() ? "the engine's session ended"
                             : absl::StrCat("the engine's session ended: ", why.message()));
  // This may have begun inside the core: let it return first.
  parts_.loop.Post([this] { TellGone(); });
}

void EngineHost::TellGone() {
  if (gone_.ok()) return;
  core_->OnEngineGone(std::exchange(gone_, absl::OkStatus()), parts_.loop.Now());
  on_change_();
}

void EngineHost::Send(EngineEvent event) {
  const auto* const room = std::get_if<RoomEvent>(&event);
  if (room != nullptr) {
    Log(LogLevel::kVerbose, log_area, "room_state",
        {{"room", room->room.id},
         {"attempt", room->room.attempt},
         {"state", RoomStateName(room->state)},
         {"drained", room->drained}});
  }
  if (room != nullptr && room->state == RoomState::kFailed && !room->drained) LogFailure(*room);
  if (session_ == nullptr) {
    // One room less that keeps the next session waiting; the core lets go of it after this.
    if (opening_ != nullptr) parts_.loop.Post([this] { FinishOpen(); });
    return;
  }
  agent_pb::AgentEvent proto;
  ToProto(event, proto);
  Put(std::move(proto));
}

void EngineHost::LogFailure(const RoomEvent& event) {
  const std::optional<int64_t> suppressed = failure_log_.Admit(parts_.loop.Now());
  if (!suppressed.has_value()) return;
  Log(LogLevel::kInfo, log_area, "room_failed",
      {{"room", event.room.id},
       {"attempt", event.room.attempt},
       {"why", event.error},
       {"suppressed", *suppressed}});
}

void EngineHost::Put(agent_pb::AgentEvent event) {
  if (session_ == nullptr || session_->Send(std::move(event))) return;
  EndSession(MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                       "the engine reads too slowly: its outbox is full", {{"limit", "outbox"}}),
             false);
}

void EngineHost::TellState(const absl::Status& why) {
  agent_pb::AgentEvent event;
  agent_pb::AgentStateEvent& out = *event.mutable_agent_state();
  out.set_state(static_cast<agent_pb::AgentState>(state()));
  ToProto(parts_.own.agent, *out.mutable_agent());
  if (!why.ok()) ToErrorDetail(why, *out.mutable_error());
  Put(std::move(event));
}

}  // namespace pageferry::agent
