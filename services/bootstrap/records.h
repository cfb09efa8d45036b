#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "libs/common/ids.h"
#include "libs/common/topology.h"

/// What the bootstrap service's tables hold, in our own types: generated ones stop at the edge.
/// All are value types without behaviour. Enums have the numbers of their proto twins.
namespace pageferry::bootstrap {

enum class Role { kPrefill = 1, kDecode = 2 };

/// How a prefill engine spreads rooms over its DP ranks.
enum class DpPolicy { kRoomModulo = 1, kDirectory = 2 };

/// Names an engine. Ordered by namespace, then name: the order of lists.
struct EngineKey {
  NamespaceName name_space;
  EngineId engine;

  friend auto operator<=>(const EngineKey&, const EngineKey&) = default;

  template <class H>
  friend H AbslHashValue(H state, const EngineKey& key) {
    return H::combine(std::move(state), key.name_space, key.engine);
  }
};

/// One life of an agent process. The greater one is the younger. The agent's id comes last, so that
/// two agents are never one incarnation, whatever numbers they bring.
struct Incarnation {
  int64_t start_time_unix_nanos = 0;
  uint64_t nonce = 0;
  AgentId agent;

  friend auto operator<=>(const Incarnation&, const Incarnation&) = default;
};

/// Where a server listens; an empty host is no endpoint.
struct Endpoint {
  std::string host;
  int32_t port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// The part of a profile that all ranks share. Enum fields are numbers of the proto.
struct Profile {
  int64_t page_tokens = 0;
  int32_t data_type = 0;
  int32_t layout = 0;
  int32_t attention = 0;
  int64_t total_kv_heads = 0;
  int64_t head_dim = 0;
  std::string model_fingerprint;
  int64_t layer_count = 0;
  bool all_cp_ranks_send = false;
  int64_t kv_shards = 0;
  int64_t decode_cp = 0;
  bool dsa_layer_split = false;

  friend bool operator==(const Profile&, const Profile&) = default;
};

/// What all ranks of an engine must agree on.
struct EngineTraits {
  Role role = Role::kPrefill;
  ParallelShape shape;
  Profile profile;
  DpPolicy dp_policy = DpPolicy::kRoomModulo;

  friend bool operator==(const EngineTraits&, const EngineTraits&) = default;
};

/// What a rank tells about itself; need not agree with others.
struct RankInfo {
  AgentId agent;
  Endpoint endpoint;
  std::map<std::string, std::string> labels;
  Endpoint metrics_endpoint;
  std::vector<std::string> transports;

  friend bool operator==(const RankInfo&, const RankInfo&) = default;
};

/// A request for a cell, already validated.
struct Claim {
  EngineKey key;
  EngineTraits traits;
  RankCoordinate coordinate;
  Incarnation incarnation;
  RankInfo info;
  absl::Duration ttl;
  /// Highest epoch that this incarnation held at this cell; 0 if none.
  Epoch last_epoch;
};

/// A claim that was granted.
struct Grant {
  LeaseId lease;
  Epoch epoch;
  absl::Duration ttl;
  int64_t missing_count = 0;  ///< cells of the engine without a live lease
  TableVersion version;       ///< of the table with this claim
};

/// What became of a lease that somebody wants to renew.
enum class LeaseFate { kRenewed, kNotFound, kSuperseded };

struct Renewal {
  LeaseId lease;
  LeaseFate fate = LeaseFate::kNotFound;
  absl::Duration ttl;  ///< from now; zero unless renewed
};

/// A live cell as readers see it.
struct RankView {
  RankIndex rank;
  Epoch epoch;
  MonotonicTime expiry;
  std::shared_ptr<const RankInfo> info;  // shared: each change of an engine makes a new view
};

/// An engine at one version of the table. Immutable once shared; holds no reference to the table.
struct EngineView {
  EngineKey key;
  EngineTraits traits;
  bool ready = false;  ///< every cell of the shape holds a live lease
  int64_t live_count = 0;
  int64_t missing_count = 0;
  std::vector<RankCoordinate> missing;  ///< the first kMaxMissingListed in rank order
  std::vector<RankView> ranks;          ///< live ones in rank order

  static constexpr size_t kMaxMissingListed = 64;
};
using EngineViewPtr = std::shared_ptr<const EngineView>;  // shared by all who read one version

}  // namespace pageferry::bootstrap
