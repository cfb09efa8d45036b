#include "services/bootstrap/engine_proto.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "libs/common/error.h"

namespace pageferry::bootstrap {
namespace {

using google::protobuf::internal::WireFormatLite;
namespace topology = pageferry::topology::v1;

void ToProto(const Endpoint& endpoint, topology::Endpoint& out) {
  out.set_host(endpoint.host);
  out.set_port(endpoint.port);
}

void ToProto(const RankCoordinate& coordinate, topology::RankCoordinate& out) {
  out.set_dp(static_cast<int32_t>(coordinate.dp));
  out.set_cp(static_cast<int32_t>(coordinate.cp));
  out.set_tp(static_cast<int32_t>(coordinate.tp));
  out.set_pp(static_cast<int32_t>(coordinate.pp));
}

void ToProto(const Profile& profile, topology::ProfileSummary& out) {
  out.set_page_tokens(static_cast<int32_t>(profile.page_tokens));
  out.set_data_type(static_cast<topology::DataType>(profile.data_type));
  out.set_layout(static_cast<topology::KvLayout>(profile.layout));
  out.set_attention(static_cast<topology::AttentionKind>(profile.attention));
  out.set_total_kv_heads(static_cast<int32_t>(profile.total_kv_heads));
  out.set_head_dim(static_cast<int32_t>(profile.head_dim));
  out.set_model_fingerprint(profile.model_fingerprint);
  out.set_layer_count(static_cast<int32_t>(profile.layer_count));
  out.set_all_cp_ranks_send(profile.all_cp_ranks_send);
  out.set_kv_shards(static_cast<int32_t>(profile.kv_shards));
  out.set_decode_cp(static_cast<int32_t>(profile.decode_cp));
  out.set_dsa_layer_split(profile.dsa_layer_split);
}

/// A length-delimited field's tag and length; `before` are fields that come earlier.
std::string Head(TableVersion version, int field, size_t length) {
  std::string head;
  google::protobuf::io::StringOutputStream stream(&head);
  google::protobuf::io::CodedOutputStream out(&stream);
  if (version != TableVersion()) {
    WireFormatLite::WriteInt64(v1::WatchEnginesResponse::kVersionFieldNumber, version.value(),
                               &out);
  }
  WireFormatLite::WriteTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED, &out);
  out.WriteVarint64(length);
  out.Trim();
  return head;
}

WatchMessage Join(TableVersion version, int field, std::vector<SharedBytes> body,
                  std::string tail) {
  if (!tail.empty()) body.push_back(std::make_shared<const std::string>(std::move(tail)));
  size_t length = 0;
  for (const SharedBytes& piece : body) length += piece->size();
  WatchMessage message;
  message.pieces.reserve(body.size() + 1);
  message.pieces.push_back(std::make_shared<const std::string>(Head(version, field, length)));
  for (SharedBytes& piece : body) message.pieces.push_back(std::move(piece));
  message.size = message.pieces.front()->size() + length;
  return message;
}

}  // namespace

void ToProto(const EngineKey& key, v1::EngineKey& out) {
  out.set_namespace_(key.name_space.value());
  out.set_engine_id(key.engine.value());
}

void ToProto(absl::Duration duration, google::protobuf::Duration& out) {
  duration = std::max(duration, absl::ZeroDuration());
  out.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  out.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

void ToProto(const RankView& rank, const RankCoordinate& coordinate,
             std::optional<MonotonicTime> now, v1::Rank& out) {
  ToProto(coordinate, *out.mutable_coordinate());
  out.mutable_agent()->set_agent_id(rank.info->agent.value());
  out.mutable_agent()->set_epoch(rank.epoch.value());
  ToProto(rank.info->endpoint, *out.mutable_endpoint());
  if (now) ToProto(rank.expiry - *now, *out.mutable_ttl());
  out.mutable_labels()->insert(rank.info->labels.begin(), rank.info->labels.end());
  if (!rank.info->metrics_endpoint.host.empty()) {
    ToProto(rank.info->metrics_endpoint, *out.mutable_metrics_endpoint());
  }
  out.mutable_transports()->Assign(rank.info->transports.begin(), rank.info->transports.end());
}

void ToProto(const EngineView& view, bool with_ranks, std::optional<MonotonicTime> now,
             v1::Engine& out) {
  ToProto(view.key, *out.mutable_key());
  out.set_role(static_cast<topology::Role>(view.traits.role));
  topology::ParallelShape& shape = *out.mutable_shape();
  shape.set_dp(static_cast<int32_t>(view.traits.shape.dp));
  shape.set_cp(static_cast<int32_t>(view.traits.shape.cp));
  shape.set_tp(static_cast<int32_t>(view.traits.shape.tp));
  shape.set_pp(static_cast<int32_t>(view.traits.shape.pp));
  ToProto(view.traits.profile, *out.mutable_profile());
  if (view.traits.role == Role::kPrefill) {
    out.set_dp_policy(static_cast<v1::DpPolicy>(view.traits.dp_policy));
  }
  out.set_ready(view.ready);
  out.set_live_count(static_cast<int32_t>(view.live_count));
  for (const RankCoordinate& missing : view.missing) ToProto(missing, *out.add_missing());
  out.set_missing_count(static_cast<int32_t>(view.missing_count));
  if (!with_ranks) return;
  for (const RankView& rank : view.ranks) {
    ToProto(rank, ToCoordinate(rank.rank, view.traits.shape), now, *out.add_ranks());
  }
}

void ToProto(const std::vector<Renewal>& renewals, v1::KeepAliveResponse& out) {
  for (const Renewal& renewal : renewals) {
    v1::LeaseState& state = *out.add_leases();
    state.set_lease_id(renewal.lease.value());
    switch (renewal.fate) {
      case LeaseFate::kRenewed:
        ToProto(renewal.ttl, *state.mutable_ttl());
        break;
      case LeaseFate::kNotFound:
        ToErrorDetail(MakeError(absl::StatusCode::kNotFound, Reason::kLeaseNotFound,
                                "the lease has lapsed or was never granted"),
                      *state.mutable_error());
        break;
      case LeaseFate::kSuperseded:
        ToErrorDetail(MakeError(absl::StatusCode::kFailedPrecondition, Reason::kSuperseded,
                                "a younger incarnation has taken the cell"),
                      *state.mutable_error());
        break;
    }
  }
}

SharedBytes EncodedEngine::Field(bool with_ranks) {
  const absl::MutexLock lock(&mutex_);
  SharedBytes& field = with_ranks ? with_ranks_ : plain_;
  if (field == nullptr) {
    v1::Engine engine;
    ToProto(*view_, with_ranks, std::nullopt, engine);
    std::string bytes = Head(TableVersion(), v1::WatchEnginesResponse::Change::kEnginesFieldNumber,
                             engine.ByteSizeLong());
    engine.AppendToString(&bytes);
    field = std::make_shared<const std::string>(std::move(bytes));
  }
  return field;
}

WatchMessage MakeSnapshot(TableVersion version, std::vector<SharedBytes> engines, bool warming_up) {
  static_assert(static_cast<int>(v1::WatchEnginesResponse::Change::kEnginesFieldNumber) ==
                    static_cast<int>(v1::WatchEnginesResponse::Snapshot::kEnginesFieldNumber),
                "EncodedEngine serves both");
  v1::WatchEnginesResponse::Snapshot rest;
  rest.set_warming_up(warming_up);
  return Join(version, v1::WatchEnginesResponse::kSnapshotFieldNumber, std::move(engines),
              rest.SerializeAsString());
}

WatchMessage MakeChange(TableVersion version, std::vector<SharedBytes> engines,
                        const std::vector<EngineKey>& removed) {
  v1::WatchEnginesResponse::Change rest;
  for (const EngineKey& key : removed) ToProto(key, *rest.add_removed());
  return Join(version, v1::WatchEnginesResponse::kChangeFieldNumber, std::move(engines),
              rest.SerializeAsString());
}

WatchMessage MakeProgress(TableVersion version) {
  return Join(version, v1::WatchEnginesResponse::kProgressFieldNumber, {}, "");
}

absl::Status TooLargeToSend(size_t bytes, size_t allowed) {
  return MakeError(
      absl::StatusCode::kResourceExhausted, Reason::kTooLarge,
      "the answer does not fit a message; ask for less",
      {{"field", "engines"}, {"value", absl::StrCat(bytes)}, {"allowed", absl::StrCat(allowed)}});
}

}  // namespace pageferry::bootstrap
