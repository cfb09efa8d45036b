#include "services/transfer-agent/convert_profile.h"

#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {
namespace {

constexpr int64_t kMaxItemBytes = int64_t{1} << 30;
constexpr int64_t kMaxItems = int64_t{1} << 31;
constexpr int64_t kMaxOffset = int64_t{1} << 62;

template <class Proto>
absl::StatusOr<Buffer> BufferFromProto(const Proto& proto, int64_t count,
                                       absl::string_view count_field, int64_t min_item,
                                       int64_t max_item, int64_t max_count, BufferOrigin origin) {
  Buffer buffer;
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("item_bytes", proto.item_bytes(), min_item, max_item));
  const bool elided = proto.item_bytes() == 0;
  if (origin == BufferOrigin::kEngine) {
    if (!elided) PAGEFERRY_RETURN_IF_ERROR(CheckName("pool_name", proto.pool_name(), 64));
    PAGEFERRY_RETURN_IF_ERROR(CheckRange("region_id", proto.region_id(), 0, 0));
    buffer.pool_name = proto.pool_name();
  } else {
    PAGEFERRY_RETURN_IF_ERROR(
        CheckRange("region_id", proto.region_id(), elided ? 0 : 1, INT64_MAX));
    buffer.region = RegionId(proto.region_id());
  }
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("offset_bytes", proto.offset_bytes(), 0, kMaxOffset));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange(count_field, count, elided ? 0 : 1, max_count));
  buffer.offset = ByteCount(proto.offset_bytes());
  buffer.item_size = ByteCount(proto.item_bytes());
  buffer.item_count = count;
  return buffer;
}

absl::StatusOr<ModelPart> PartFromProto(topology_pb::ModelPart part) {
  if (part == topology_pb::MODEL_PART_UNSPECIFIED) return ModelPart::kTarget;
  PAGEFERRY_RETURN_IF_ERROR(CheckEnum("part", part, topology_pb::ModelPart_IsValid));
  return static_cast<ModelPart>(part);
}

absl::StatusOr<Entry> EntryFromProto(const topology_pb::Entry& proto, BufferOrigin origin) {
  Entry entry;
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("layer", proto.layer(), 0, 65'535));
  PAGEFERRY_RETURN_IF_ERROR(CheckEnum("kind", proto.kind(), topology_pb::EntryKind_IsValid));
  entry.layer = proto.layer();
  entry.kind = static_cast<EntryKind>(proto.kind());
  PAGEFERRY_ASSIGN_OR_RETURN(entry.part, PartFromProto(proto.part()));
  PAGEFERRY_ASSIGN_OR_RETURN(entry.pages, BufferFromProto(proto, proto.page_count(), "page_count",
                                                          1, kMaxItemBytes, kMaxItems, origin));
  return entry;
}

absl::StatusOr<StateEntry> StateEntryFromProto(const topology_pb::StateEntry& proto,
                                               BufferOrigin origin) {
  StateEntry entry;
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("layer", proto.layer(), -1, 65'535));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("sliced_dim", proto.sliced_dim(), 0, kMaxItems));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("outer_count", proto.outer_count(), 0, kMaxItems));
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("shard_groups", proto.shard_groups_size(), 64));
  entry.layer = proto.layer();
  entry.sliced_dim = proto.sliced_dim();
  entry.outer_count = proto.outer_count() == 0 ? 1 : proto.outer_count();
  for (const int64_t size : proto.shard_groups()) {
    PAGEFERRY_RETURN_IF_ERROR(CheckRange("shard_groups", size, 1, kMaxItems));
    entry.shard_groups.push_back(size);
  }
  PAGEFERRY_ASSIGN_OR_RETURN(entry.items, BufferFromProto(proto, proto.item_count(), "item_count",
                                                          0, kMaxItemBytes, kMaxItems, origin));
  return entry;
}

absl::StatusOr<StateComponent> StateFromProto(const topology_pb::StateComponent& proto,
                                              BufferOrigin origin) {
  StateComponent state;
  PAGEFERRY_RETURN_IF_ERROR(CheckEnum("kind", proto.kind(), topology_pb::StateKind_IsValid));
  PAGEFERRY_RETURN_IF_ERROR(CheckEnum("layout", proto.layout(), topology_pb::KvLayout_IsValid));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("page_tokens", proto.page_tokens(), 0, 65'536));
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("entries", proto.entries_size(), kMaxEntries));
  state.kind = static_cast<StateKind>(proto.kind());
  state.layout = static_cast<KvLayout>(proto.layout());
  state.page_tokens = proto.page_tokens();
  PAGEFERRY_ASSIGN_OR_RETURN(state.part, PartFromProto(proto.part()));
  state.entries.reserve(static_cast<size_t>(proto.entries_size()));
  for (int i = 0; i < proto.entries_size(); ++i) {
    PAGEFERRY_ASSIGN_OR_RETURN(StateEntry entry, StateEntryFromProto(proto.entries(i), origin),
                               InField(_, "entries", i));
    state.entries.push_back(std::move(entry));
  }
  return state;
}

absl::StatusOr<AuxBuffer> AuxFromProto(const topology_pb::AuxBuffer& proto, BufferOrigin origin) {
  AuxBuffer aux;
  PAGEFERRY_RETURN_IF_ERROR(CheckAuxName("name", proto.name()));
  aux.name = proto.name();
  PAGEFERRY_ASSIGN_OR_RETURN(aux.slots, BufferFromProto(proto, proto.slot_count(), "slot_count", 1,
                                                        int64_t{16} << 20, 1'048'576, origin));
  return aux;
}

absl::Status ListsFromProto(const topology_pb::KvProfile& proto, BufferOrigin origin,
                            KvProfile& profile) {
  std::set<std::tuple<int32_t, EntryKind, ModelPart>> entries;
  profile.entries.reserve(static_cast<size_t>(proto.entries_size()));
  for (int i = 0; i < proto.entries_size(); ++i) {
    PAGEFERRY_ASSIGN_OR_RETURN(Entry entry, EntryFromProto(proto.entries(i), origin),
                               InField(_, "entries", i));
    if (!entries.emplace(entry.layer, entry.kind, entry.part).second) {
      return InField(InvalidField("layer", absl::StrCat(entry.layer),
                                  "each layer, kind and part once in a profile"),
                     "entries", i);
    }
    profile.entries.push_back(std::move(entry));
  }
  for (int i = 0; i < proto.states_size(); ++i) {
    PAGEFERRY_ASSIGN_OR_RETURN(StateComponent state, StateFromProto(proto.states(i), origin),
                               InField(_, "states", i));
    profile.states.push_back(std::move(state));
  }
  absl::flat_hash_set<std::string> names;
  for (int i = 0; i < proto.aux_size(); ++i) {
    PAGEFERRY_ASSIGN_OR_RETURN(AuxBuffer aux, AuxFromProto(proto.aux(i), origin),
                               InField(_, "aux", i));
    if (!names.insert(aux.name).second) {
      return InField(InvalidField("name", aux.name, "each name once in a profile"), "aux", i);
    }
    profile.aux.push_back(std::move(aux));
  }
  return absl::OkStatus();
}

/// The fields that registrations and what peers exchange have in common.
template <class Proto>
absl::StatusOr<EngineInfo> CommonFromProto(const Proto& proto, BufferOrigin origin) {
  EngineInfo engine;
  PAGEFERRY_RETURN_IF_ERROR(CheckNamespace("namespace", proto.namespace_()));
  PAGEFERRY_RETURN_IF_ERROR(CheckName("engine_id", proto.engine_id(), 128));
  PAGEFERRY_RETURN_IF_ERROR(CheckEnum("role", proto.role(), topology_pb::Role_IsValid));
  engine.name_space = NamespaceName(proto.namespace_().empty() ? "default" : proto.namespace_());
  engine.engine_id = EngineId(proto.engine_id());
  engine.role = static_cast<Role>(proto.role());
  engine.shape = FromProto(proto.shape());
  PAGEFERRY_RETURN_IF_ERROR(ValidateShape(engine.shape));
  engine.coordinate = FromProto(proto.coordinate());
  PAGEFERRY_RETURN_IF_ERROR(ValidateCoordinate(engine.coordinate, engine.shape));
  PAGEFERRY_ASSIGN_OR_RETURN(engine.profile, FromProto(proto.profile(), origin),
                             InField(_, "profile"));
  return engine;
}

template <class Proto>
void BufferToProto(const Buffer& buffer, BufferOrigin origin, Proto& proto) {
  if (origin == BufferOrigin::kEngine) {
    proto.set_pool_name(buffer.pool_name);
  } else {
    proto.set_region_id(buffer.region.value());
  }
  proto.set_offset_bytes(buffer.offset.value());
  proto.set_item_bytes(buffer.item_size.value());
}

void ProfileToProto(const KvProfile& profile, BufferOrigin origin, topology_pb::KvProfile& proto) {
  proto.set_page_tokens(profile.page_tokens);
  proto.set_data_type(static_cast<topology_pb::DataType>(profile.data_type));
  proto.set_layout(static_cast<topology_pb::KvLayout>(profile.layout));
  proto.set_attention(static_cast<topology_pb::AttentionKind>(profile.attention));
  proto.set_total_kv_heads(profile.total_kv_heads);
  proto.set_rank_kv_heads(profile.rank_kv_heads);
  proto.set_head_dim(profile.head_dim);
  for (const Entry& entry : profile.entries) {
    topology_pb::Entry& out = *proto.add_entries();
    out.set_layer(entry.layer);
    out.set_kind(static_cast<topology_pb::EntryKind>(entry.kind));
    out.set_part(static_cast<topology_pb::ModelPart>(entry.part));
    out.set_page_count(entry.pages.item_count);
    BufferToProto(entry.pages, origin, out);
  }
  for (const StateComponent& state : profile.states) {
    topology_pb::StateComponent& out = *proto.add_states();
    out.set_kind(static_cast<topology_pb::StateKind>(state.kind));
    out.set_part(static_cast<topology_pb::ModelPart>(state.part));
    out.set_page_tokens(state.page_tokens);
    out.set_layout(static_cast<topology_pb::KvLayout>(state.layout));
    for (const StateEntry& entry : state.entries) {
      topology_pb::StateEntry& item = *out.add_entries();
      item.set_layer(entry.layer);
      item.set_item_count(entry.items.item_count);
      item.set_sliced_dim(entry.sliced_dim);
      item.set_outer_count(entry.outer_count);
      for (const int64_t size : entry.shard_groups) item.add_shard_groups(size);
      BufferToProto(entry.items, origin, item);
    }
  }
  for (const AuxBuffer& aux : profile.aux) {
    topology_pb::AuxBuffer& out = *proto.add_aux();
    out.set_name(aux.name);
    out.set_slot_count(aux.slots.item_count);
    BufferToProto(aux.slots, origin, out);
  }
  proto.set_model_fingerprint(profile.model_fingerprint);
  proto.set_all_cp_ranks_send(profile.all_cp_ranks_send);
  proto.set_kv_shards(profile.kv_shards);
  proto.set_decode_cp(profile.decode_cp);
  proto.set_dsa_layer_split(profile.dsa_layer_split);
}

template <class Proto>
void CommonToProto(const EngineInfo& engine, BufferOrigin origin, Proto& proto) {
  proto.set_namespace_(engine.name_space.value());
  proto.set_engine_id(engine.engine_id.value());
  proto.set_role(static_cast<topology_pb::Role>(engine.role));
  ToProto(engine.shape, *proto.mutable_shape());
  ToProto(engine.coordinate, *proto.mutable_coordinate());
  ProfileToProto(engine.profile, origin, *proto.mutable_profile());
}

}  // namespace

absl::StatusOr<KvProfile> FromProto(const topology_pb::KvProfile& proto, BufferOrigin origin) {
  KvProfile profile;
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("page_tokens", proto.page_tokens(), 1, 65'536));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckEnum("data_type", proto.data_type(), topology_pb::DataType_IsValid));
  PAGEFERRY_RETURN_IF_ERROR(CheckEnum("layout", proto.layout(), topology_pb::KvLayout_IsValid));
  PAGEFERRY_RETURN_IF_ERROR(
      CheckEnum("attention", proto.attention(), topology_pb::AttentionKind_IsValid));
  const int64_t min_heads = proto.attention() == topology_pb::ATTENTION_KIND_MHA ? 1 : 0;
  PAGEFERRY_RETURN_IF_ERROR(
      CheckRange("total_kv_heads", proto.total_kv_heads(), min_heads, 65'536));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("rank_kv_heads", proto.rank_kv_heads(), min_heads, 65'536));
  if (proto.total_kv_heads() > 0) {
    PAGEFERRY_RETURN_IF_ERROR(
        CheckRange("rank_kv_heads", proto.rank_kv_heads(), 0, proto.total_kv_heads()));
  }
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("head_dim", proto.head_dim(), 1, 65'536));
  PAGEFERRY_RETURN_IF_ERROR(CheckSize("model_fingerprint", proto.model_fingerprint(), 256));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("kv_shards", proto.kv_shards(), 0, 65'536));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("decode_cp", proto.decode_cp(), 0, 65'536));
  if (proto.entries().empty()) return InvalidField("entries", "0", "at least one");
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("entries", proto.entries_size(), kMaxEntries));
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("states", proto.states_size(), kMaxComponents));
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("aux", proto.aux_size(), kMaxComponents));
  profile.page_tokens = proto.page_tokens();
  profile.data_type = static_cast<DataType>(proto.data_type());
  profile.layout = static_cast<KvLayout>(proto.layout());
  profile.attention = static_cast<AttentionKind>(proto.attention());
  profile.total_kv_heads = proto.total_kv_heads();
  profile.rank_kv_heads = proto.rank_kv_heads();
  profile.head_dim = proto.head_dim();
  profile.model_fingerprint = proto.model_fingerprint();
  profile.all_cp_ranks_send = proto.all_cp_ranks_send();
  profile.kv_shards = std::max(proto.kv_shards(), 1);
  profile.decode_cp = std::max(proto.decode_cp(), 1);
  profile.dsa_layer_split = proto.dsa_layer_split();
  PAGEFERRY_RETURN_IF_ERROR(ListsFromProto(proto, origin, profile));
  return profile;
}

absl::StatusOr<EngineInfo> FromProto(const agent_pb::RegisterEngineRequest& proto) {
  PAGEFERRY_ASSIGN_OR_RETURN(EngineInfo engine, CommonFromProto(proto, BufferOrigin::kEngine));
  PAGEFERRY_RETURN_IF_ERROR(CheckCount("labels", static_cast<int64_t>(proto.labels_size()), 32));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("layer_count", proto.layer_count(), 0, 65'536));
  for (const auto& [key, value] : proto.labels()) {
    PAGEFERRY_RETURN_IF_ERROR(CheckSize("labels", key, 63));
    PAGEFERRY_RETURN_IF_ERROR(CheckSize("labels", value, 63));
    engine.labels.emplace(key, value);
  }
  engine.dp_by_directory = proto.dp_by_directory();
  engine.layer_count = proto.layer_count();
  return engine;
}

absl::StatusOr<EngineInfo> FromProto(const peer_pb::EngineInfo& proto) {
  return CommonFromProto(proto, BufferOrigin::kPeer);
}

agent_pb::RegisterEngineRequest ToRegisterRequest(const EngineInfo& engine) {
  agent_pb::RegisterEngineRequest proto;
  CommonToProto(engine, BufferOrigin::kEngine, proto);
  proto.set_dp_by_directory(engine.dp_by_directory);
  proto.set_layer_count(engine.layer_count);
  proto.mutable_labels()->insert(engine.labels.begin(), engine.labels.end());
  return proto;
}

peer_pb::EngineInfo ToPeerEngine(const EngineInfo& engine) {
  peer_pb::EngineInfo proto;
  CommonToProto(engine, BufferOrigin::kPeer, proto);
  return proto;
}

topology_pb::ProfileSummary ToSummary(const EngineInfo& engine) {
  topology_pb::ProfileSummary proto;
  const KvProfile& profile = engine.profile;
  proto.set_page_tokens(profile.page_tokens);
  proto.set_data_type(static_cast<topology_pb::DataType>(profile.data_type));
  proto.set_layout(static_cast<topology_pb::KvLayout>(profile.layout));
  proto.set_attention(static_cast<topology_pb::AttentionKind>(profile.attention));
  proto.set_total_kv_heads(profile.total_kv_heads);
  proto.set_head_dim(profile.head_dim);
  proto.set_model_fingerprint(profile.model_fingerprint);
  proto.set_layer_count(engine.layer_count);
  proto.set_all_cp_ranks_send(profile.all_cp_ranks_send);
  proto.set_kv_shards(profile.kv_shards);
  proto.set_decode_cp(profile.decode_cp);
  proto.set_dsa_layer_split(profile.dsa_layer_split);
  return proto;
}

ParallelShape FromProto(const topology_pb::ParallelShape& proto) {
  return {.dp = proto.dp(), .cp = proto.cp(), .tp = proto.tp(), .pp = proto.pp()};
}

RankCoordinate FromProto(const topology_pb::RankCoordinate& proto) {
  return {.dp = proto.dp(), .cp = proto.cp(), .tp = proto.tp(), .pp = proto.pp()};
}

absl::StatusOr<AgentRef> FromProto(const topology_pb::AgentRef& proto, int64_t min_epoch) {
  PAGEFERRY_RETURN_IF_ERROR(CheckName("agent_id", proto.agent_id(), 128));
  PAGEFERRY_RETURN_IF_ERROR(CheckRange("epoch", proto.epoch(), min_epoch, INT64_MAX));
  return AgentRef{AgentId(proto.agent_id()), Epoch(proto.epoch())};
}

void ToProto(const ParallelShape& shape, topology_pb::ParallelShape& proto) {
  proto.set_dp(static_cast<int32_t>(shape.dp));
  proto.set_cp(static_cast<int32_t>(shape.cp));
  proto.set_tp(static_cast<int32_t>(shape.tp));
  proto.set_pp(static_cast<int32_t>(shape.pp));
}

void ToProto(const RankCoordinate& coordinate, topology_pb::RankCoordinate& proto) {
  proto.set_dp(static_cast<int32_t>(coordinate.dp));
  proto.set_cp(static_cast<int32_t>(coordinate.cp));
  proto.set_tp(static_cast<int32_t>(coordinate.tp));
  proto.set_pp(static_cast<int32_t>(coordinate.pp));
}

void ToProto(const AgentRef& agent, topology_pb::AgentRef& proto) {
  proto.set_agent_id(agent.id.value());
  proto.set_epoch(agent.epoch.value());
}

}  // namespace pageferry::agent
