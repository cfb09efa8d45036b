#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libs/common/ids.h"
#include "libs/common/topology.h"

/// An engine rank and its cache, as the agent keeps them. Own structs:
/// generated types stop at the edges. Numbers and ranges as in
/// protos/pageferry/topology/v1/topology.proto; a value here has been checked
/// (validate.h).
namespace pageferry::agent {

/// Numbers of the proto enums of the same names.
enum class Role : int8_t { kPrefill = 1, kDecode = 2 };
enum class DataType : int8_t {
  kFloat32 = 1,
  kFloat16 = 2,
  kBfloat16 = 3,
  kFloat8E4m3 = 4,
  kFloat8E5m2 = 5,
  kInt8 = 6,
  kFloat4E2m1 = 7,
  kOpaque = 8,
};
enum class KvLayout : int8_t { kUnspecified = 0, kNhd = 1, kHnd = 2, kOpaque = 3 };
enum class AttentionKind : int8_t { kMha = 1, kMla = 2, kHybridMla = 3 };
enum class EntryKind : int8_t { kK = 1, kV = 2, kLatent = 3, kIndexer = 4, kScale = 5, kRope = 6 };
enum class ModelPart : int8_t { kTarget = 1, kDraft = 2 };
enum class StateKind : int8_t {
  kMamba = 1,
  kSwa = 2,
  kDsa = 3,
  kDsaTail = 4,
  kIndexK = 5,
  kDenseKv = 6,
  kSwaRing = 7,
  kCompressState = 8,
  kQsaPending = 9,
  kQsaCompressed = 10,
  kRequestRow = 11,
  kBlockScale = 12,
  kBlockScaleSwa = 13,
};

/// Where items lie: item i begins at offset + i * item_size of the region.
struct Buffer {
  std::string pool_name;  // own engine only
  RegionId region;
  ByteCount offset;
  ByteCount item_size;
  int64_t item_count = 0;

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

/// One buffer of one layer; its items are pages.
struct Entry {
  int32_t layer = 0;
  EntryKind kind = EntryKind::kK;
  ModelPart part = ModelPart::kTarget;
  Buffer pages;

  friend bool operator==(const Entry&, const Entry&) = default;
};

struct StateEntry {
  int32_t layer = -1;
  Buffer items;
  int64_t sliced_dim = 0;
  int64_t outer_count = 1;
  std::vector<int64_t> shard_groups;

  friend bool operator==(const StateEntry&, const StateEntry&) = default;
};

struct StateComponent {
  StateKind kind = StateKind::kMamba;
  ModelPart part = ModelPart::kTarget;
  std::vector<StateEntry> entries;
  int32_t page_tokens = 0;
  KvLayout layout = KvLayout::kUnspecified;

  friend bool operator==(const StateComponent&, const StateComponent&) = default;
};

/// Per-request metadata; its items are slots.
struct AuxBuffer {
  std::string name;
  Buffer slots;

  friend bool operator==(const AuxBuffer&, const AuxBuffer&) = default;
};

struct KvProfile {
  int32_t page_tokens = 0;
  DataType data_type = DataType::kOpaque;
  KvLayout layout = KvLayout::kUnspecified;
  AttentionKind attention = AttentionKind::kMha;
  int32_t total_kv_heads = 0;
  int32_t rank_kv_heads = 0;
  int32_t head_dim = 0;
  std::vector<Entry> entries;
  std::vector<StateComponent> states;
  std::vector<AuxBuffer> aux;
  std::string model_fingerprint;
  bool all_cp_ranks_send = false;
  int32_t kv_shards = 1;
  int32_t decode_cp = 1;
  bool dsa_layer_split = false;

  friend bool operator==(const KvProfile&, const KvProfile&) = default;
};

/// An engine rank.
struct EngineInfo {
  NamespaceName name_space;
  EngineId engine_id;
  Role role = Role::kPrefill;
  ParallelShape shape;
  RankCoordinate coordinate;
  KvProfile profile;
  bool dp_by_directory = false;
  int32_t layer_count = 0;
  std::map<std::string, std::string> labels;

  friend bool operator==(const EngineInfo&, const EngineInfo&) = default;
};

/// An agent and its incarnation at a cell.
struct AgentRef {
  AgentId id;
  Epoch epoch;

  friend bool operator==(const AgentRef&, const AgentRef&) = default;
};

}  // namespace pageferry::agent
