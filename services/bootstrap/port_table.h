#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "libs/common/ids.h"
#include "libs/common/lease_table.h"
#include "services/bootstrap/engine_cells.h"
#include "services/bootstrap/records.h"

namespace pageferry::bootstrap {

/// The port table: which agent holds each cell of every engine, with leases, epochs and versions.
///
/// Thread-compatible; pure: time is an argument and must not go back. Owns all records. A lease
/// lives while `now` is before its expiry. Steps are O(log n) but for views, which are O(ranks).
///
/// An engine is known from its first claim until `engine_memory` after its last lease ended; where
/// a bound is reached, the engine that has been without a lease for longest is dropped earlier.
/// Once no lease of it lives, a claim with other traits gives it a new shape. Of dropped engines
/// the epochs are remembered, `max_engines` of them; beyond that they raise the floor of all.
class PortTable {
 public:
  struct Options {
    absl::Duration engine_memory = absl::Minutes(10);
    size_t max_engines = 65'536;
    size_t max_cells = 1'048'576;  ///< live and lapsed together
    /// Epochs that are not brought by agents, lease ids and versions are above these. Take them
    /// from the wall clock, so that they exceed those of an earlier table that was lost: this holds
    /// unless that clock was set back between the two.
    Epoch epoch_floor;
    LeaseId lease_floor;
    TableVersion version_floor;
  };

  explicit PortTable(const Options& options);

  /// Claims a cell, or renews the claim. The status codes of `EngineCells::MakeClaim` and
  /// `CheckTraits`, and kResourceExhausted, LIMIT_REACHED: retry later.
  absl::StatusOr<Grant> Register(const Claim& claim, MonotonicTime now);

  /// Renews a lease that lives.
  Renewal KeepAlive(LeaseId lease, MonotonicTime now);

  /// Ends a lease. False if it did not live.
  bool Deregister(LeaseId lease, MonotonicTime now);

  /// Ends at most `max_count` leases and engines whose time has come. True if there may be more.
  bool ExpireUpTo(MonotonicTime now, size_t max_count);
  /// When to call it next.
  MonotonicTime NextExpiry() const;

  /// Null for an engine that is not known.
  EngineViewPtr View(const EngineKey& key, bool with_ranks) const;

  /// Whether an engine is known and ready.
  bool IsReady(const EngineKey& key) const;

  /// The holders of `coordinates`, in their order.
  /// kNotFound, ENGINE_NOT_FOUND. kInvalidArgument, INVALID_FIELD: outside the shape.
  /// kUnavailable, ENGINE_NOT_READY with "missing": wait.
  absl::StatusOr<std::vector<RankView>> Resolve(const EngineKey& key,
                                                absl::Span<const RankCoordinate> coordinates) const;

  /// Known engines from `from` on, in order, of one namespace or of all: at most `limit`, and no
  /// more after `max_ranks` ranks have been listed. `next` is where to go on, if there is more.
  struct Page {
    std::vector<EngineViewPtr> engines;
    std::optional<EngineKey> next;
  };
  Page List(const std::optional<NamespaceName>& name_space, const EngineKey& from, size_t limit,
            bool with_ranks, size_t max_ranks) const;

  /// Grows with each change that readers can see; renewals are none.
  TableVersion version() const { return version_; }

  /// What changed since the last call, each engine once, in no particular order.
  struct Change {
    EngineKey key;
    bool removed = false;
    bool engine_level = false;  ///< it appeared, has new traits, or `ready` turned
  };
  std::vector<Change> TakeChanges();
  bool has_changes() const { return !changes_.empty(); }

  struct Counts {
    size_t engines_ready = 0;
    size_t engines_not_ready = 0;
    size_t leases = 0;
    size_t cells = 0;
    size_t remembered_leases = 0;  ///< at most two a cell
    int64_t registrations =
        0;  ///< claims granted that made a lease; the following likewise since start
    int64_t expiries = 0;
    int64_t supersedes = 0;
    int64_t deregistrations = 0;
  };
  Counts counts() const;

 private:
  struct Engine {
    EngineKey key;
    std::unique_ptr<EngineCells> cells;
    bool was_ready = false;
    bool appeared = false;  ///< not yet reported as a change
  };
  struct CellRef {
    uint32_t slot;
    RankIndex rank;
  };

  absl::StatusOr<uint32_t> FindOrMake(const Claim& claim);
  absl::Status MakeRoom(bool engine_is_new, std::optional<uint32_t> spare);
  void EndLease(LeaseId lease, MonotonicTime now);
  void ForgetCells(const EngineCells& cells);
  void Drop(uint32_t slot);
  void Touch(uint32_t slot, bool engine_level);
  EngineViewPtr MakeView(const Engine& engine, bool with_ranks) const;
  const Engine* Find(const EngineKey& key) const;

  const Options options_;
  absl::btree_map<EngineKey, uint32_t> slots_;
  std::vector<Engine> engines_;  // by slot; cells is null in a free one
  std::vector<uint32_t> free_slots_;
  absl::flat_hash_map<LeaseId, CellRef> refs_;  // live, lapsed and superseded leases
  LeaseTable<LeaseId> leases_;
  ExpiryHeap idle_;  // slots without a live lease, by when they are dropped
  absl::flat_hash_map<EngineKey, EpochMemory> dropped_;
  absl::flat_hash_map<EngineKey, Change> changes_;
  Epoch epoch_floor_;
  LeaseId last_lease_;
  TableVersion version_;
  size_t cells_ = 0;
  size_t ready_ = 0;
  Counts totals_;
};

/// kNotFound, ENGINE_NOT_FOUND.
absl::Status EngineNotFound(const EngineKey& key);

}  // namespace pageferry::bootstrap
