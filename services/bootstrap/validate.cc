#include "services/bootstrap/validate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/duration.pb.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/common/topology.h"
#include "pageferry/topology/v1/topology.pb.h"

namespace pageferry::bootstrap {
namespace {

namespace topology = pageferry::topology::v1;

constexpr int64_t kMaxLastEpoch = int64_t{1} << 62;
constexpr size_t kMaxNamespace = 63;
constexpr size_t kMaxName = 128;
constexpr size_t kMaxLabelCount = 32;
constexpr size_t kMaxLabelText = 63;
constexpr int kMaxTransports = 16;
constexpr size_t kMaxTransportText = 32;
constexpr size_t kMaxFingerprint = 256;
constexpr int64_t kMaxSmall = 65'536;
constexpr int32_t kMaxDpRank = 65'535;
constexpr int kMaxPageSize = 1000;
constexpr int kMaxWatchedEngines = 1000;
constexpr absl::string_view kEverything = "*";

const absl::Duration kMinTtl = absl::Seconds(1);
const absl::Duration kMaxTtl = absl::Minutes(10);
const absl::Duration kMaxWait = absl::Seconds(60);

absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view allowed) {
  return InvalidField(std::string(field), std::string(value), std::string(allowed));
}

absl::Status Missing(absl::string_view field) { return Bad(field, "", "required"); }

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Bad(field, absl::StrCat(value), absl::StrCat(low, " to ", high));
}

absl::Status CheckBatch(absl::string_view field, int count) {
  if (count == 0) return Bad(field, "0 entries", absl::StrCat("1 to ", kMaxBatch));
  if (count <= kMaxBatch) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kTooLarge,
                   std::string(absl::StrCat(field, " has ", count, " entries")),
                   {{"field", std::string(field)},
                    {"value", absl::StrCat(count)},
                    {"allowed", absl::StrCat(kMaxBatch)}});
}

absl::Status UnknownEnum(absl::string_view field, int value) {
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kUnknownEnum,
                   std::string(absl::StrCat(field, ": ", value, " is not a known value")),
                   {{"field", std::string(field)}, {"value", absl::StrCat(value)}});
}

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}
bool IsNamespaceCharacter(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return absl::ascii_islower(byte) || absl::ascii_isdigit(byte) || c == '-';
}

absl::Status CheckName(absl::string_view field, absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxName && std::ranges::all_of(name, IsNameCharacter)) {
    return absl::OkStatus();
  }
  return Bad(field, name, "1 to 128 characters of [A-Za-z0-9._-]");
}

absl::StatusOr<NamespaceName> ReadNamespace(absl::string_view field, absl::string_view name) {
  if (name.empty()) return NamespaceName("default");
  if (name.size() > kMaxNamespace || !std::ranges::all_of(name, IsNamespaceCharacter)) {
    return Bad(field, name, "at most 63 characters of [a-z0-9-]");
  }
  return NamespaceName(std::string(name));
}

size_t CharacterCount(absl::string_view text) {
  constexpr unsigned kContinuationMask = 0xC0;
  constexpr unsigned kContinuation = 0x80;
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & kContinuationMask) != kContinuation;
  }));
}

absl::StatusOr<absl::Duration> ReadDuration(absl::string_view field,
                                            const google::protobuf::Duration& duration,
                                            absl::Duration low, absl::Duration high) {
  const std::string allowed =
      absl::StrCat(absl::FormatDuration(low), " to ", absl::FormatDuration(high));
  constexpr int64_t kMaxSeconds = 315'576'000'000;  // of google.protobuf.Duration
  constexpr int32_t kMaxNanos = 999'999'999;
  const bool in_form = duration.seconds() >= 0 && duration.seconds() <= kMaxSeconds &&
                       duration.nanos() >= 0 && duration.nanos() <= kMaxNanos;
  const absl::Duration value =
      absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
  if (!in_form || value < low || value > high) {
    return Bad(field, absl::StrCat(duration.seconds(), "s ", duration.nanos(), "ns"), allowed);
  }
  return value;
}

RankCoordinate ReadCoordinate(const topology::RankCoordinate& from) {
  return {.dp = from.dp(), .cp = from.cp(), .tp = from.tp(), .pp = from.pp()};
}

absl::StatusOr<Profile> ReadProfile(const topology::ProfileSummary& from) {
  if (!topology::DataType_IsValid(from.data_type()) || from.data_type() == 0) {
    return UnknownEnum("profile.data_type", from.data_type());
  }
  if (!topology::KvLayout_IsValid(from.layout()) || from.layout() == 0) {
    return UnknownEnum("profile.layout", from.layout());
  }
  if (!topology::AttentionKind_IsValid(from.attention()) || from.attention() == 0) {
    return UnknownEnum("profile.attention", from.attention());
  }
  const bool by_head = from.attention() == topology::ATTENTION_KIND_MHA;
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("profile.page_tokens", from.page_tokens(), 1, kMaxSmall));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("profile.total_kv_heads", from.total_kv_heads(),
                                       by_head ? 1 : 0, by_head ? kMaxSmall : 0));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("profile.head_dim", from.head_dim(), 1, kMaxSmall));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("profile.layer_count", from.layer_count(), 0, kMaxSmall));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("profile.kv_shards", from.kv_shards(), 0, kMaxSmall));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("profile.decode_cp", from.decode_cp(), 0, kMaxSmall));
  if (CharacterCount(from.model_fingerprint()) > kMaxFingerprint) {
    return Bad("profile.model_fingerprint", absl::StrCat(from.model_fingerprint().size(), " bytes"),
               "at most 256 characters");
  }
  return Profile{.page_tokens = from.page_tokens(),
                 .data_type = from.data_type(),
                 .layout = from.layout(),
                 .attention = from.attention(),
                 .total_kv_heads = from.total_kv_heads(),
                 .head_dim = from.head_dim(),
                 .model_fingerprint = from.model_fingerprint(),
                 .layer_count = from.layer_count(),
                 .all_cp_ranks_send = from.all_cp_ranks_send(),
                 .kv_shards = from.kv_shards(),
                 .decode_cp = from.decode_cp(),
                 .dsa_layer_split = from.dsa_layer_split()};
}

absl::StatusOr<EngineTraits> ReadTraits(const v1::RegisterRequest& request) {
  EngineTraits traits;
  if (request.role() != topology::ROLE_PREFILL && request.role() != topology::ROLE_DECODE) {
    return UnknownEnum("role", request.role());
  }
  traits.role = static_cast<Role>(request.role());
  if (!request.has_shape()) return Missing("shape");
  const topology::ParallelShape& shape = request.shape();
  traits.shape = {.dp = shape.dp(), .cp = shape.cp(), .tp = shape.tp(), .pp = shape.pp()};
  PAGEFERRY_RETURN_IF_ERROR(ValidateShape(traits.shape));
  if (!request.has_profile()) return Missing("profile");
  PAGEFERRY_ASSIGN_OR_RETURN(traits.profile, ReadProfile(request.profile()));
  if (!v1::DpPolicy_IsValid(request.dp_policy())) {
    return UnknownEnum("dp_policy", request.dp_policy());
  }
  const bool directory = request.dp_policy() == v1::DP_POLICY_DIRECTORY;
  if (directory && traits.role != Role::kPrefill) {
    return Bad("dp_policy", "DP_POLICY_DIRECTORY", "none for a decode engine");
  }
  traits.dp_policy = directory ? DpPolicy::kDirectory : DpPolicy::kRoomModulo;
  return traits;
}

absl::StatusOr<RankInfo> ReadInfo(const v1::RegisterRequest& request, const RequestLimits& limits) {
  RankInfo info;
  PAGEFERRY_RETURN_IF_ERROR(CheckName("agent_id", request.agent_id()));
  info.agent = AgentId(request.agent_id());
  info.endpoint = {request.endpoint().host(), request.endpoint().port()};
  PAGEFERRY_RETURN_IF_ERROR(
      CheckEndpoint(info.endpoint, "endpoint", limits.allow_loopback_endpoints));
  const topology::Endpoint& metrics = request.metrics_endpoint();
  if (!metrics.host().empty() || metrics.port() != 0) {
    info.metrics_endpoint = {metrics.host(), metrics.port()};
    // It is for people, who may be on the agent's own host.
    PAGEFERRY_RETURN_IF_ERROR(
        CheckEndpoint(info.metrics_endpoint, "metrics_endpoint", /*allow_loopback=*/true));
  }
  if (request.labels().size() > kMaxLabelCount) {
    return Bad("labels", absl::StrCat(request.labels().size()), "at most 32");
  }
  for (const auto& [name, value] : request.labels()) {
    if (name.empty() || CharacterCount(name) > kMaxLabelText ||
        CharacterCount(value) > kMaxLabelText) {
      return Bad("labels", absl::StrCat(name, "=", value), "1 to 63 and 0 to 63 characters");
    }
    info.labels.emplace(name, value);
  }
  if (request.transports_size() > kMaxTransports) {
    return Bad("transports", absl::StrCat(request.transports_size()), "at most 16");
  }
  for (const std::string& transport : request.transports()) {
    if (transport.empty() || transport.size() > kMaxTransportText ||
        !std::ranges::all_of(transport, IsNameCharacter)) {
      return Bad("transports", transport, "1 to 32 characters of [A-Za-z0-9._-]");
    }
    info.transports.push_back(transport);
  }
  return info;
}

}  // namespace

absl::StatusOr<EngineKey> ReadKey(const v1::EngineKey& key) {
  EngineKey result;
  PAGEFERRY_ASSIGN_OR_RETURN(result.name_space,
                             ReadNamespace("engine.namespace", key.namespace_()));
  PAGEFERRY_RETURN_IF_ERROR(CheckName("engine.engine_id", key.engine_id()));
  result.engine = EngineId(key.engine_id());
  return result;
}

absl::StatusOr<Claim> ReadRegister(const v1::RegisterRequest& request,
                                   const RequestLimits& limits) {
  Claim claim;
  PAGEFERRY_ASSIGN_OR_RETURN(claim.key, ReadKey(request.engine()));
  PAGEFERRY_ASSIGN_OR_RETURN(claim.traits, ReadTraits(request));
  if (!request.has_coordinate()) return Missing("coordinate");
  claim.coordinate = ReadCoordinate(request.coordinate());
  PAGEFERRY_RETURN_IF_ERROR(ValidateCoordinate(claim.coordinate, claim.traits.shape));
  PAGEFERRY_ASSIGN_OR_RETURN(claim.info, ReadInfo(request, limits));
  if (request.incarnation().start_time_unix_nanos() <= 0) {
    return Bad("incarnation.start_time_unix_nanos",
               absl::StrCat(request.incarnation().start_time_unix_nanos()), "above 0");
  }
  claim.incarnation = {.start_time_unix_nanos = request.incarnation().start_time_unix_nanos(),
                       .nonce = request.incarnation().nonce(),
                       .agent = claim.info.agent};
  claim.ttl = limits.default_ttl;
  if (request.has_ttl()) {
    PAGEFERRY_ASSIGN_OR_RETURN(claim.ttl, ReadDuration("ttl", request.ttl(), kMinTtl, kMaxTtl));
  }
  claim.ttl = std::clamp(claim.ttl, limits.min_ttl, limits.max_ttl);
  // Not to the end of the numbers: the cell's next epochs lie above it.
  if (request.last_epoch() < 0 || request.last_epoch() > kMaxLastEpoch) {
    return Bad("last_epoch", absl::StrCat(request.last_epoch()),
               absl::StrCat("0 to ", kMaxLastEpoch));
  }
  claim.last_epoch = Epoch(request.last_epoch());
  return claim;
}

absl::StatusOr<std::vector<LeaseId>> ReadKeepAlive(const v1::KeepAliveRequest& request) {
  PAGEFERRY_RETURN_IF_ERROR(CheckBatch("lease_ids", request.lease_ids_size()));
  std::vector<LeaseId> leases;
  leases.reserve(static_cast<size_t>(request.lease_ids_size()));
  for (const int64_t lease : request.lease_ids()) leases.emplace_back(lease);
  return leases;
}

absl::StatusOr<LeaseId> ReadDeregister(const v1::DeregisterRequest& request) {
  if (request.lease_id() <= 0) {
    return Bad("lease_id", absl::StrCat(request.lease_id()), "above 0");
  }
  return LeaseId(request.lease_id());
}

std::string MakePageToken(const EngineKey& key) {
  return absl::StrCat(key.name_space.value(), "/", key.engine.value());
}

absl::StatusOr<EngineListQuery> ReadListEngines(const v1::ListEnginesRequest& request) {
  EngineListQuery query{.with_ranks = request.include_ranks()};
  if (request.namespace_() != kEverything) {
    PAGEFERRY_ASSIGN_OR_RETURN(query.name_space, ReadNamespace("namespace", request.namespace_()));
    query.from.name_space = *query.name_space;
  }
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("page_size", request.page_size(), 0, kMaxPageSize));
  if (request.page_size() != 0) query.limit = static_cast<size_t>(request.page_size());
  if (request.page_token().empty()) return query;
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(request.page_token(), absl::MaxSplits('/', 1));
  v1::EngineKey key;
  key.set_namespace_(parts.first);
  key.set_engine_id(parts.second);
  const auto from = ReadKey(key);
  if (!from.ok() || (query.name_space && from->name_space != *query.name_space)) {
    return Bad("page_token", request.page_token(), "a token of the previous page");
  }
  query.from = *from;
  return query;
}

absl::StatusOr<ResolveQuery> ReadResolveRanks(const v1::ResolveRanksRequest& request) {
  ResolveQuery query;
  PAGEFERRY_ASSIGN_OR_RETURN(query.key, ReadKey(request.engine()));
  PAGEFERRY_RETURN_IF_ERROR(CheckBatch("coordinates", request.coordinates_size()));
  query.coordinates.reserve(static_cast<size_t>(request.coordinates_size()));
  for (const auto& coordinate : request.coordinates()) {
    query.coordinates.push_back(ReadCoordinate(coordinate));
  }
  PAGEFERRY_ASSIGN_OR_RETURN(query.wait,
                             ReadDuration("wait", request.wait(), absl::ZeroDuration(), kMaxWait));
  return query;
}

absl::StatusOr<PlaceQuery> ReadPlaceRooms(const v1::PlaceRoomsRequest& request) {
  PlaceQuery query{.ttl = absl::Minutes(5)};
  PAGEFERRY_ASSIGN_OR_RETURN(query.key, ReadKey(request.engine()));
  PAGEFERRY_RETURN_IF_ERROR(CheckBatch("placements", request.placements_size()));
  query.placements.reserve(static_cast<size_t>(request.placements_size()));
  for (const v1::RoomPlacement& placement : request.placements()) {
    if (placement.room_id() < 0) {
      return Bad("placements.room_id", absl::StrCat(placement.room_id()), "0 or more");
    }
    PAGEFERRY_RETURN_IF_ERROR(CheckRange("placements.dp_rank", placement.dp_rank(), 0, kMaxDpRank));
    query.placements.push_back({RoomId(placement.room_id()), placement.dp_rank()});
  }
  if (request.has_ttl()) {
    PAGEFERRY_ASSIGN_OR_RETURN(
        query.ttl, ReadDuration("ttl", request.ttl(), absl::Seconds(1), absl::Hours(1)));
  }
  return query;
}

absl::StatusOr<LookupQuery> ReadLookupRooms(const v1::LookupRoomsRequest& request) {
  LookupQuery query;
  PAGEFERRY_ASSIGN_OR_RETURN(query.key, ReadKey(request.engine()));
  PAGEFERRY_RETURN_IF_ERROR(CheckBatch("room_ids", request.room_ids_size()));
  query.rooms.reserve(static_cast<size_t>(request.room_ids_size()));
  for (const int64_t room : request.room_ids()) {
    if (room < 0) return Bad("room_ids", absl::StrCat(room), "0 or more");
    query.rooms.emplace_back(room);
  }
  PAGEFERRY_ASSIGN_OR_RETURN(query.wait,
                             ReadDuration("wait", request.wait(), absl::ZeroDuration(), kMaxWait));
  return query;
}

absl::StatusOr<WatchQuery> ReadWatchEngines(const v1::WatchEnginesRequest& request) {
  WatchQuery query{.with_ranks = request.include_ranks()};
  if (request.namespace_() != kEverything) {
    PAGEFERRY_ASSIGN_OR_RETURN(query.name_space, ReadNamespace("namespace", request.namespace_()));
  }
  if (request.engine_ids_size() > kMaxWatchedEngines) {
    return Bad("engine_ids", absl::StrCat(request.engine_ids_size()), "at most 1000");
  }
  for (const std::string& engine : request.engine_ids()) {
    PAGEFERRY_RETURN_IF_ERROR(CheckName("engine_ids", engine));
    query.engines.emplace_back(engine);
  }
  if (request.resume_version() < 0) {
    return Bad("resume_version", absl::StrCat(request.resume_version()), "0 or more");
  }
  query.resume = TableVersion(request.resume_version());
  return query;
}

}  // namespace pageferry::bootstrap
