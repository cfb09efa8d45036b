#include "services/transfer-agent/convert_room.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {
namespace {

template <class Proto>
absl::StatusOr<absl::Duration> TimeoutFromProto(const Proto& proto) {
  if (!proto.has_timeout()) return absl::Seconds(300);
  return CheckDuration("timeout", proto.timeout().seconds(), proto.timeout().nanos(),
                       absl::Milliseconds(1), absl::Hours(24));
}

TraceContext TraceFromProto(const agent_pb::TraceContext& proto) {
  return {.traceparent = proto.traceparent(), .tracestate = proto.tracestate()};
}

absl::StatusOr<EngineCommand> Parse(const agent_pb::OpenSend& proto) {
  OpenSend command;
  PAGEFERRY_ASSIGN_OR_RETURN(command.room, FromProto(proto.room(), 0));
  PAGEFERRY_ASSIGN_OR_RETURN(command.timeout, TimeoutFromProto(proto));
  PAGEFERRY_RETURN_IF_ERROR(CheckRoomExtras(proto.priority(), proto.capability(),
                                            proto.trace().traceparent(),
                                            proto.trace().tracestate()));
  command.priority = proto.priority();
  command.capability = proto.capability();
  command.trace = TraceFromProto(proto.trace());
  command.dummy = proto.dummy();
  return command;
}

absl::StatusOr<EngineCommand> Parse(const agent_pb::SendChunk& proto) {
  SendChunk command;
  PAGEFERRY_ASSIGN_OR_RETURN(command.room, FromProto(proto.room(), 0));
  PAGEFERRY_ASSIGN_OR_RETURN(command.runs, FromProto(proto.page_runs()));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange("first_position", proto.first_position(), 0, int64_t{1} << 40));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("aux_slot", proto.aux_slot(), 0, kMaxAuxSlot));
  PAGEFERRY_ASSIGN_OR_RETURN(command.states, FromProto(proto.states()));
  command.first_position = proto.first_position();
  command.last = proto.last();
  if (proto.has_aux_slot()) command.aux_slot = proto.aux_slot();
  return command;
}

absl::StatusOr<EngineCommand> Parse(const agent_pb::OpenReceive& proto) {
  OpenReceive command;
  PAGEFERRY_ASSIGN_OR_RETURN(command.room, FromProto(proto.room(), 1));
  PAGEFERRY_RETURN_IF_ERROR(CheckName("prefill_engine_id", proto.prefill_engine_id(), 128));
  PAGEFERRY_ASSIGN_OR_RETURN(command.runs, FromProto(proto.page_runs()));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("aux_slot", proto.aux_slot(), 0, kMaxAuxSlot));
  PAGEFERRY_ASSIGN_OR_RETURN(command.states, FromProto(proto.states()));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange("cached_prefix_pages", proto.cached_prefix_pages(), 0, int64_t{1} << 40));
  if (proto.has_prefill_dp_rank()) {
    PAGEFERRY_RETURN_IF_ERROR(CheckRange("prefill_dp_rank", proto.prefill_dp_rank(), 0, 65'535));
    command.prefill_dp_rank = proto.prefill_dp_rank();
  }
  PAGEFERRY_ASSIGN_OR_RETURN(command.timeout, TimeoutFromProto(proto));
  PAGEFERRY_RETURN_IF_ERROR(CheckRoomExtras(proto.priority(), proto.capability(),
                                            proto.trace().traceparent(),
                                            proto.trace().tracestate()));
  command.prefill_engine = EngineId(proto.prefill_engine_id());
  if (proto.has_aux_slot()) command.aux_slot = proto.aux_slot();
  command.cached_prefix_pages = proto.cached_prefix_pages();
  command.priority = proto.priority();
  command.capability = proto.capability();
  command.trace = TraceFromProto(proto.trace());
  command.checksum = proto.checksum();
  return command;
}

template <class Command, class Proto>
absl::StatusOr<EngineCommand> ParseWithDetail(const Proto& proto, int64_t max_detail) {
  Command command;
  PAGEFERRY_ASSIGN_OR_RETURN(command.room, FromProto(proto.room(), 0));
  PAGEFERRY_RETURN_IF_ERROR(CheckSize("detail", proto.detail(), max_detail));
  command.detail = proto.detail();
  return command;
}

absl::StatusOr<EngineCommand> Parse(const agent_pb::AbortRoomCommand& proto) {
  return ParseWithDetail<AbortCommand>(proto, 256);
}
absl::StatusOr<EngineCommand> Parse(const agent_pb::FailRoom& proto) {
  return ParseWithDetail<FailCommand>(proto, 1024);
}
absl::StatusOr<EngineCommand> Parse(const agent_pb::CloseRoom& proto) {
  PAGEFERRY_ASSIGN_OR_RETURN(const RoomKey room, FromProto(proto.room(), 0));
  return CloseRoom{.room = room};
}

absl::Status Unsupported(absl::string_view feature) {
  return MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                   absl::StrCat("this release does not know ", feature),
                   {{"feature", std::string(feature)}});
}

template <class Proto>
ParsedCommand ParseNamed(absl::string_view name, const Proto& proto) {
  const RoomKey room{RoomId(std::max<int64_t>(proto.room().room_id(), 0)),
                     Attempt(std::max(proto.room().attempt(), 0))};
  return {.room = room, .name = std::string(name), .command = Parse(proto)};
}

template <class Proto>
ParsedCommand RefuseNamed(absl::string_view name, const Proto& proto) {
  const RoomKey room{RoomId(proto.room().room_id()), Attempt(proto.room().attempt())};
  return {.room = room, .name = std::string(name), .command = Unsupported(name)};
}

absl::string_view NameOf(const std::optional<transport::TransportKind>& kind) {
  return kind.has_value() ? transport::TransportName(*kind) : "";
}

void Fill(const RoomEvent& event, agent_pb::AgentEvent& proto) {
  agent_pb::RoomEvent& out = *proto.mutable_room();
  ToProto(event.room, *out.mutable_room());
  out.set_state(static_cast<agent_pb::RoomState>(event.state));
  out.set_drained(event.drained);
  if (!event.error.ok()) ToErrorDetail(event.error, *out.mutable_error());
  out.set_pages(event.pages);
  out.set_bytes(event.bytes.value());
  out.set_transport(std::string(NameOf(event.transport)));
  ToProto(event.elapsed, *out.mutable_elapsed());
  if (event.since_grant.has_value()) ToProto(*event.since_grant, *out.mutable_since_grant());
}

void Fill(const PrefixKnown& event, agent_pb::AgentEvent& proto) {
  agent_pb::PrefixKnown& out = *proto.mutable_prefix_known();
  ToProto(event.room, *out.mutable_room());
  out.set_cached_prefix_pages(event.cached_prefix_pages);
  out.set_granted_pages(event.granted_pages);
}

void Fill(const CommandRefused& event, agent_pb::AgentEvent& proto) {
  agent_pb::CommandRefused& out = *proto.mutable_refused();
  ToProto(event.room, *out.mutable_room());
  out.set_command(event.command);
  ToErrorDetail(event.error, *out.mutable_error());
}

void Fill(const EngineLost& event, agent_pb::AgentEvent& proto) {
  agent_pb::EngineLost& out = *proto.mutable_engine_lost();
  out.set_engine_id(event.engine.value());
  ToProto(event.agent, *out.mutable_agent());
  ToErrorDetail(event.error, *out.mutable_error());
}

void Fill(const Backpressure& event, agent_pb::AgentEvent& proto) {
  proto.mutable_backpressure()->set_engaged(event.engaged);
  proto.mutable_backpressure()->set_limit(event.limit);
}

}  // namespace

ParsedCommand ParseCommand(const agent_pb::EngineCommand& proto) {
  switch (proto.command_case()) {
    case agent_pb::EngineCommand::kOpenSend:
      return ParseNamed("open_send", proto.open_send());
    case agent_pb::EngineCommand::kSendChunk:
      return ParseNamed("send_chunk", proto.send_chunk());
    case agent_pb::EngineCommand::kOpenReceive:
      return ParseNamed("open_receive", proto.open_receive());
    case agent_pb::EngineCommand::kAbort:
      return ParseNamed("abort", proto.abort());
    case agent_pb::EngineCommand::kCloseRoom:
      return ParseNamed("close_room", proto.close_room());
    case agent_pb::EngineCommand::kFailRoom:
      return ParseNamed("fail_room", proto.fail_room());
    case agent_pb::EngineCommand::kRequestRecompute:
      return RefuseNamed("request_recompute", proto.request_recompute());
    case agent_pb::EngineCommand::kRecomputeResult:
      return RefuseNamed("recompute_result", proto.recompute_result());
    case agent_pb::EngineCommand::kOpen:
    case agent_pb::EngineCommand::COMMAND_NOT_SET:
      break;
  }
  return {.room = {}, .name = "", .command = Unsupported("command")};
}

void ToProto(const EngineEvent& event, agent_pb::AgentEvent& proto) {
  std::visit([&](const auto& what) { Fill(what, proto); }, event);
}

void ToProto(const RoomView& view, agent_pb::RoomInfo& proto) {
  ToProto(view.room, *proto.mutable_room());
  proto.set_role(static_cast<topology_pb::Role>(view.role));
  proto.set_state(static_cast<agent_pb::RoomState>(view.state));
  proto.set_drained(view.drained);
  proto.set_waiting_for(view.waiting_for);
  ToProto(view.waiting_time, *proto.mutable_waiting_time());
  ToProto(view.age, *proto.mutable_age());
  ToProto(view.time_left, *proto.mutable_time_left());
  if (view.peer.has_value()) ToProto(*view.peer, *proto.mutable_peer());
  proto.set_peer_engine_id(view.peer_engine);
  proto.set_transport(std::string(NameOf(view.transport)));
  proto.set_pages_granted(view.pages_granted);
  proto.set_pages_offered(view.pages_offered);
  proto.set_pages_done(view.pages_done);
  proto.set_bytes_done(view.bytes_done.value());
  if (!view.error.ok()) ToErrorDetail(view.error, *proto.mutable_error());
}

absl::StatusOr<RoomKey> FromProto(const agent_pb::RoomRef& proto, int64_t min_attempt) {
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("room.room_id", proto.room_id(), 0, INT64_MAX));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("room.attempt", proto.attempt(), min_attempt, INT32_MAX));
  return RoomKey{RoomId(proto.room_id()), Attempt(proto.attempt())};
}

void ToProto(const RoomKey& room, agent_pb::RoomRef& proto) {
  proto.set_room_id(room.id.value());
  proto.set_attempt(static_cast<int32_t>(room.attempt.value()));
}

absl::StatusOr<std::vector<PageRun>> FromProto(
    const google::protobuf::RepeatedPtrField<topology_pb::PageRun>& proto) {
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("page_runs", proto.size(), kMaxPageRuns));
  std::vector<PageRun> runs;
  runs.reserve(static_cast<size_t>(proto.size()));
  for (const topology_pb::PageRun& run : proto) {
    int64_t end = 0;
    if (run.first() < 0 || run.count() < 1 ||
        __builtin_add_overflow(run.first(), run.count(), &end)) {
      return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadPages,
                       "a page run is empty or negative",
                       {{"field", "page_runs"},
                        {"first", absl::StrCat(run.first())},
                        {"count", absl::StrCat(run.count())},
                        {"allowed", "first 0 or more, count 1 or more"}});
    }
    runs.push_back({.first = run.first(), .count = run.count()});
  }
  return runs;
}

void ToProto(const std::vector<PageRun>& runs,
             google::protobuf::RepeatedPtrField<topology_pb::PageRun>& proto) {
  proto.Reserve(static_cast<int>(runs.size()));
  for (const PageRun& run : runs) {
    topology_pb::PageRun& out = *proto.Add();
    out.set_first(run.first);
    out.set_count(run.count);
  }
}

absl::StatusOr<std::vector<StateIndices>> FromProto(
    const google::protobuf::RepeatedPtrField<topology_pb::StateIndices>& proto) {
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("states", proto.size(), kMaxComponents));
  std::vector<StateIndices> states;
  uint64_t seen = 0;
  for (const topology_pb::StateIndices& indices : proto) {
    PAGEFERRY_RETURN_IF_ERROR(
        CheckRange("states.component", indices.component(), 0, kMaxComponents - 1));
    PAGEFERRY_RETURN_IF_ERROR(
        CheckCount("states.indices", indices.indices_size(), kMaxStateIndices));
    const uint64_t bit = uint64_t{1} << indices.component();
    if ((seen & bit) != 0) {
      return InvalidField("states.component", absl::StrCat(indices.component()),
                          "each component once");
    }
    seen |= bit;
    states.push_back({.component = indices.component(),
                      .indices = {indices.indices().begin(), indices.indices().end()}});
  }
  return states;
}

void ToProto(const std::vector<StateIndices>& states,
             google::protobuf::RepeatedPtrField<topology_pb::StateIndices>& proto) {
  for (const StateIndices& indices : states) {
    topology_pb::StateIndices& out = *proto.Add();
    out.set_component(indices.component);
    out.mutable_indices()->Add(indices.indices.begin(), indices.indices.end());
  }
}

absl::Status CheckRoomExtras(int32_t priority, absl::string_view capability,
                             absl::string_view traceparent, absl::string_view tracestate) {
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("priority", priority, -100, 100));
  PAGEFERRY_RETURN_IF_ERROR(CheckSize("capability", capability, kMaxCapabilityBytes));
  PAGEFERRY_RETURN_IF_ERROR(CheckSize("trace.traceparent", traceparent, 128));
  return CheckSize("trace.tracestate", tracestate, 512);
}

void ToProto(absl::Duration duration, google::protobuf::Duration& proto) {
  constexpr int64_t kMaxSeconds = 315'576'000'000;
  const absl::Duration bounded =
      std::clamp(duration, -absl::Seconds(kMaxSeconds), absl::Seconds(kMaxSeconds));
  absl::Duration rest = bounded;
  proto.set_seconds(absl::IDivDuration(bounded, absl::Seconds(1), &rest));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

}  // namespace pageferry::agent
