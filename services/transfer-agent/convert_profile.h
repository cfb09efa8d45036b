#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/common/topology.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "pageferry/peer/v1/peer.pb.h"
#include "pageferry/topology/v1/topology.pb.h"
#include "services/transfer-agent/profile.h"

/// Engines and their profiles between protos and own structs. The way in checks every field
/// (validate.h); ranges within pools or regions depend on the agent's state and are checked in
/// pool_store.h and hello.h. Pure.
namespace pageferry::agent {

namespace agent_pb = ::pageferry::agent::v1;
namespace peer_pb = ::pageferry::peer::v1;
namespace topology_pb = ::pageferry::topology::v1;

/// Who speaks of a buffer: an engine names pools, a peer names regions.
enum class BufferOrigin { kEngine, kPeer };

/// kInvalidArgument with the reasons of validate.h.
absl::StatusOr<EngineInfo> FromProto(const agent_pb::RegisterEngineRequest& proto);
absl::StatusOr<EngineInfo> FromProto(const peer_pb::EngineInfo& proto);
absl::StatusOr<KvProfile> FromProto(const topology_pb::KvProfile& proto, BufferOrigin origin);

/// For GetAgent: as the engine registered it.
agent_pb::RegisterEngineRequest ToRegisterRequest(const EngineInfo& engine);
/// For peers: with region ids, without pool names.
peer_pb::EngineInfo ToPeerEngine(const EngineInfo& engine);
/// For the bootstrap service.
topology_pb::ProfileSummary ToSummary(const EngineInfo& engine);

ParallelShape FromProto(const topology_pb::ParallelShape& proto);
RankCoordinate FromProto(const topology_pb::RankCoordinate& proto);
/// kInvalidArgument, INVALID_FIELD: bad id, or an epoch below `min_epoch`.
absl::StatusOr<AgentRef> FromProto(const topology_pb::AgentRef& proto, int64_t min_epoch = 1);

void ToProto(const ParallelShape& shape, topology_pb::ParallelShape& proto);
void ToProto(const RankCoordinate& coordinate, topology_pb::RankCoordinate& proto);
void ToProto(const AgentRef& agent, topology_pb::AgentRef& proto);

}  // namespace pageferry::agent
