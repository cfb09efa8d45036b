#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "libs/common/host_port.h"
#include "libs/common/ids.h"
#include "libs/common/topology.h"
#include "services/transfer-agent/engines_match.h"
#include "services/transfer-agent/profile.h"

namespace pageferry::agent {

/// Who holds a cell.
struct RankRecord {
  AgentRef agent;
  HostPort endpoint;

  friend bool operator==(const RankRecord&, const RankRecord&) = default;
};

/// An engine as the bootstrap service's table has it.
struct EngineRecord {
  EngineId id;
  Role role = Role::kPrefill;
  ParallelShape shape;
  DpPolicy dp_policy = DpPolicy::kRoomModulo;
  bool ready = false;
  std::vector<RankCoordinate> missing;  ///< at most 64
  int64_t missing_count = 0;
  std::map<RankCoordinate, RankRecord> ranks;

  friend bool operator==(const EngineRecord&, const EngineRecord&) = default;
};

/// What a watch says; as in bootstrap.proto.
struct TableSnapshot {
  std::vector<EngineRecord> engines;
  bool warming_up = false;
};
struct TableChange {
  std::vector<EngineRecord> engines;
  std::vector<EngineId> removed;
};
struct TableProgress {};
struct TableEvent {
  TableVersion version;
  std::variant<TableSnapshot, TableChange, TableProgress> what;
};

/// The engines that this agent asked for, as last heard. While the service warms up after an empty
/// start nothing reads as gone: what is not back yet stays as it was (I11).
///
/// Thread-compatible. Pure.
class EngineTable {
 public:
  /// Takes an event; answers the engines that changed.
  std::vector<EngineId> Apply(TableEvent event);

  /// Null where it was never heard of or has gone.
  const EngineRecord* Find(const EngineId& engine) const;
  void Forget(const EngineId& engine) { engines_.erase(engine); }

  /// Highest version seen; 0 at first. To resume from.
  TableVersion version() const { return version_; }
  void ResetVersion() { version_ = TableVersion(0); }
  bool warming_up() const { return warming_up_; }

 private:
  bool Put(EngineRecord record);

  std::map<EngineId, EngineRecord> engines_;
  TableVersion version_;
  bool warming_up_ = false;
};

}  // namespace pageferry::agent
