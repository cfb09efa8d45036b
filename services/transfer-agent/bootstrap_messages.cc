#include "services/transfer-agent/bootstrap_messages.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "libs/common/error.h"
#include "libs/common/log.h"
#include "libs/common/topology.h"
#include "services/transfer-agent/convert_profile.h"
#include "services/transfer-agent/convert_room.h"

namespace pageferry::agent {
namespace {

LogArea log_area("watch");

absl::Duration DurationOf(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

std::optional<EngineRecord> RecordOf(const bootstrap_pb::Engine& proto) {
  EngineRecord record;
  record.id = EngineId(proto.key().engine_id());
  record.shape = FromProto(proto.shape());
  const bool known_role =
      proto.role() == topology_pb::ROLE_PREFILL || proto.role() == topology_pb::ROLE_DECODE;
  if (!known_role || !ValidateShape(record.shape).ok()) {
    Log(LogLevel::kError, log_area, "engine_left_out", {{"engine", record.id}});
    return std::nullopt;
  }
  record.role = static_cast<Role>(proto.role());
  record.dp_policy = proto.dp_policy() == bootstrap_pb::DP_POLICY_DIRECTORY ? DpPolicy::kDirectory
                                                                            : DpPolicy::kRoomModulo;
  record.ready = proto.ready();
  record.missing_count = proto.missing_count();
  for (const topology_pb::RankCoordinate& missing : proto.missing()) {
    if (record.missing.size() < 64) record.missing.push_back(FromProto(missing));
  }
  for (const bootstrap_pb::Rank& rank : proto.ranks()) {
    const RankCoordinate coordinate = FromProto(rank.coordinate());
    const absl::StatusOr<AgentRef> agent = FromProto(rank.agent());
    const bool good = agent.ok() && ValidateCoordinate(coordinate, record.shape).ok() &&
                      !rank.endpoint().host().empty() && rank.endpoint().port() > 0 &&
                      rank.endpoint().port() < 65'536;
    if (!good) continue;
    record.ranks[coordinate] = {
        .agent = *agent,
        .endpoint = {.host = rank.endpoint().host(), .port = rank.endpoint().port()}};
  }
  return record;
}

std::vector<EngineRecord> RecordsOf(
    const google::protobuf::RepeatedPtrField<bootstrap_pb::Engine>& protos) {
  std::vector<EngineRecord> records;
  for (const bootstrap_pb::Engine& proto : protos) {
    if (auto record = RecordOf(proto)) records.push_back(*std::move(record));
  }
  return records;
}

}  // namespace

bootstrap_pb::RegisterRequest ToProto(const Registration& registration) {
  const EngineInfo& engine = registration.engine;
  bootstrap_pb::RegisterRequest proto;
  ToProto(engine.name_space, engine.engine_id, *proto.mutable_engine());
  proto.set_role(static_cast<topology_pb::Role>(engine.role));
  ToProto(engine.shape, *proto.mutable_shape());
  *proto.mutable_profile() = ToSummary(engine);
  ToProto(engine.coordinate, *proto.mutable_coordinate());
  proto.set_agent_id(registration.agent.value());
  proto.mutable_incarnation()->set_start_time_unix_nanos(
      registration.incarnation.start_time_unix_nanos);
  proto.mutable_incarnation()->set_nonce(registration.incarnation.nonce);
  proto.mutable_endpoint()->set_host(registration.endpoint.host);
  proto.mutable_endpoint()->set_port(registration.endpoint.port);
  ToProto(registration.ttl, *proto.mutable_ttl());
  proto.set_last_epoch(registration.last_epoch.value());
  if (engine.role == Role::kPrefill) {
    proto.set_dp_policy(engine.dp_by_directory ? bootstrap_pb::DP_POLICY_DIRECTORY
                                               : bootstrap_pb::DP_POLICY_ROOM_MODULO);
  }
  proto.mutable_labels()->insert(engine.labels.begin(), engine.labels.end());
  if (registration.metrics_endpoint.has_value()) {
    proto.mutable_metrics_endpoint()->set_host(registration.metrics_endpoint->host);
    proto.mutable_metrics_endpoint()->set_port(registration.metrics_endpoint->port);
  }
  for (const std::string& name : registration.transports) proto.add_transports(name);
  return proto;
}

void ToProto(const NamespaceName& name_space, const EngineId& engine,
             bootstrap_pb::EngineKey& proto) {
  proto.set_namespace_(name_space.value());
  proto.set_engine_id(engine.value());
}

absl::StatusOr<Claim> FromProto(const bootstrap_pb::RegisterResponse& proto) {
  const absl::Duration ttl = DurationOf(proto.ttl());
  if (proto.lease_id() <= 0 || proto.epoch() <= 0 || ttl <= absl::ZeroDuration()) {
    return MakeError(absl::StatusCode::kInternal, Reason::kInternal,
                     "the bootstrap service granted a claim without lease, epoch or time");
  }
  return Claim{.lease = LeaseId(proto.lease_id()), .epoch = Epoch(proto.epoch()), .ttl = ttl};
}

std::vector<Renewal> FromProto(const bootstrap_pb::KeepAliveResponse& proto) {
  std::vector<Renewal> renewals;
  for (const bootstrap_pb::LeaseState& state : proto.leases()) {
    renewals.push_back(
        {.lease = LeaseId(state.lease_id()),
         .ttl = DurationOf(state.ttl()),
         .lost = state.has_error() ? FromErrorDetail(state.error()) : absl::OkStatus()});
  }
  return renewals;
}

TableEvent FromProto(const bootstrap_pb::WatchEnginesResponse& proto) {
  TableEvent event{.version = TableVersion(std::max<int64_t>(proto.version(), 0)),
                   .what = TableProgress{}};
  switch (proto.event_case()) {
    case bootstrap_pb::WatchEnginesResponse::kSnapshot:
      event.what = TableSnapshot{.engines = RecordsOf(proto.snapshot().engines()),
                                 .warming_up = proto.snapshot().warming_up()};
      break;
    case bootstrap_pb::WatchEnginesResponse::kChange: {
      TableChange change{.engines = RecordsOf(proto.change().engines()), .removed = {}};
      for (const bootstrap_pb::EngineKey& key : proto.change().removed()) {
        change.removed.emplace_back(key.engine_id());
      }
      event.what = std::move(change);
      break;
    }
    case bootstrap_pb::WatchEnginesResponse::kProgress:
    case bootstrap_pb::WatchEnginesResponse::EVENT_NOT_SET:
      break;
  }
  return event;
}

}  // namespace pageferry::agent
