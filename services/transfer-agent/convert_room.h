#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "pageferry/topology/v1/topology.pb.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/convert_profile.h"
#include "services/transfer-agent/messages.h"

/// What engines and operators say about rooms, between protos and own structs. The way in checks
/// every field (validate.h). Pure.
namespace pageferry::agent {

/// One command of an engine, or why it cannot be taken. `room` and `name` are filled either way,
/// so that the refusal can name them.
struct ParsedCommand {
  RoomKey room;
  std::string name;
  absl::StatusOr<EngineCommand> command;
};

/// Reads any command but `open`. kInvalidArgument as in validate.h; kUnimplemented, UNSUPPORTED
/// for what this release cannot do, and for a command without content that it knows.
ParsedCommand ParseCommand(const agent_pb::EngineCommand& proto);

void ToProto(const EngineEvent& event, agent_pb::AgentEvent& proto);
void ToProto(const RoomView& view, agent_pb::RoomInfo& proto);

/// kInvalidArgument, INVALID_FIELD: outside [0, 2^63) or an attempt below `min_attempt`.
absl::StatusOr<RoomKey> FromProto(const agent_pb::RoomRef& proto, int64_t min_attempt);
void ToProto(const RoomKey& room, agent_pb::RoomRef& proto);

// --- parts that engine commands and peer frames share ---

/// kInvalidArgument: TOO_LARGE, BAD_PAGES for a run that is not good in itself.
absl::StatusOr<std::vector<PageRun>> FromProto(
    const google::protobuf::RepeatedPtrField<topology_pb::PageRun>& proto);
void ToProto(const std::vector<PageRun>& runs,
             google::protobuf::RepeatedPtrField<topology_pb::PageRun>& proto);

/// kInvalidArgument: INVALID_FIELD for a component outside [0, 64) or named twice, TOO_LARGE.
absl::StatusOr<std::vector<StateIndices>> FromProto(
    const google::protobuf::RepeatedPtrField<topology_pb::StateIndices>& proto);
void ToProto(const std::vector<StateIndices>& states,
             google::protobuf::RepeatedPtrField<topology_pb::StateIndices>& proto);

/// The checks of what a room carries along: priority, capability, trace.
absl::Status CheckRoomExtras(int32_t priority, absl::string_view capability,
                             absl::string_view traceparent, absl::string_view tracestate);

void ToProto(absl::Duration duration, google::protobuf::Duration& proto);

}  // namespace pageferry::agent
