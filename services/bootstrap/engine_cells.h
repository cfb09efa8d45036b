#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/ids.h"
#include "libs/common/topology.h"
#include "services/bootstrap/records.h"

namespace pageferry::bootstrap {

/// What is remembered of the epochs of cells that were dropped, for all cells of an engine at once.
struct EpochMemory {
  /// No epoch above it was given. New ones are higher.
  Epoch highest;
  /// A claim without a cell's memory keeps the epoch it brings only above this: below it, another
  /// incarnation may have had the cell since.
  Epoch fence;
};

/// One cell that was claimed at least once. It is never empty again: with its memory it can tell a
/// younger incarnation from an older one.
struct Cell {
  Incarnation holder;  ///< the youngest incarnation seen
  Epoch epoch;         ///< the holder's
  Epoch highest;       ///< highest epoch known of this cell; a new holder gets a higher one
  LeaseId lease;       ///< the holder's current or last lease
  LeaseId superseded;  ///< the lease that the holder's first one superseded; 0 if none
  bool live = false;   ///< the lease lives
  std::shared_ptr<const RankInfo> info;  // shared with views
};

/// The cells of one engine under one shape: who holds which, and with what epoch.
///
/// Thread-compatible; pure. Memory grows with the cells claimed, not with the shape. A cell is
/// absent, live or lapsed:
///
///            claim            claim, same or younger
///   absent --------> live <------------------------- lapsed
///                     | ^ claim, same: keeps lease and epoch         a claim by an older
///                     +-+ claim, younger: lease superseded           incarnation is refused
///                     +----------------------------> lapsed          in both
///                        lease ended
///
/// Epochs: the same incarnation keeps its epoch. A new holder gets one above all that the cell had,
/// or keeps the one it brings where that is higher still (it had it from a service that lost its
/// memory). So no two holders of a cell have one epoch, also when they bring the same: the second
/// of them gets another. An older incarnation's higher epoch (possible only when two services
/// without common memory ran side by side) is not given to the holder but raises the next one.
class EngineCells {
 public:
  /// `traits.shape` must be valid. `before` tells of cells that this engine had earlier.
  EngineCells(EngineTraits traits, EpochMemory before);

  struct Claimed {
    Epoch epoch;
    LeaseId lease;
    LeaseId ended;      ///< lease that no longer lives because of this claim; 0 if none
    LeaseId forgotten;  ///< lease that is remembered no more; 0 if none
    bool new_cell = false;
    bool new_lease = false;
    bool superseded = false;  ///< it took the cell from another incarnation
    bool changed = false;     ///< readers see a difference
  };

  /// Claims a cell. `fresh` is used if the claim needs a new lease; epochs that are not brought are
  /// above `floor`. `claim.coordinate` must lie in the shape and the traits agree.
  /// kFailedPrecondition, SUPERSEDED: a younger incarnation is known. Never retry.
  /// kResourceExhausted, LIMIT_REACHED: no higher epoch exists. Do not retry.
  absl::StatusOr<Claimed> MakeClaim(const Claim& claim, LeaseId fresh, Epoch floor);

  /// The lease of `rank` has ended. False if `lease` is not its live lease: nothing happens then.
  bool EndLease(RankIndex rank, LeaseId lease);

  /// kFailedPrecondition, SHAPE_MISMATCH or PROFILE_MISMATCH with "field", "have", "got": the first
  /// difference. Use another engine id, or end the old leases.
  absl::Status CheckTraits(const EngineTraits& got) const;

  const EngineTraits& traits() const { return traits_; }
  int64_t live_count() const { return live_count_; }
  int64_t missing_count() const { return rank_count_ - live_count_; }
  bool ready() const { return live_count_ == rank_count_; }
  /// What must be remembered when these cells are dropped.
  EpochMemory ToMemory() const;

  const Cell* Find(RankIndex rank) const;
  const absl::btree_map<RankIndex, Cell>& cells() const { return cells_; }

  /// The first `limit` cells without a live lease, in rank order.
  std::vector<RankCoordinate> Missing(size_t limit) const;

 private:
  absl::StatusOr<Claimed> Take(Cell& cell, const Claim& claim, LeaseId fresh, Epoch floor,
                               bool known);

  const EngineTraits traits_;
  const EpochMemory before_;
  const int64_t rank_count_;
  absl::btree_map<RankIndex, Cell> cells_;
  int64_t live_count_ = 0;
  Epoch highest_;
  Epoch fence_;
};

}  // namespace pageferry::bootstrap
