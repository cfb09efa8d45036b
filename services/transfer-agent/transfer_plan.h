#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/common/ids.h"
#include "libs/common/page_runs.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/messages.h"
#include "services/transfer-agent/profile.h"

/// What is moved from one prefill rank to one decode rank of an equal shape: which buffer goes
/// where, and how many bytes that is. Pure.
namespace pageferry::agent {

/// Bounds of the indices that a rank's engine may name, and what each index stands for in bytes.
struct ProfileSizes {
  struct Component {
    int64_t items = 0;
    ByteCount item_bytes;
  };
  /// Pages that every entry has; 0 without entries.
  int64_t pages = 0;
  ByteCount page_bytes;
  /// Slots that every aux buffer has; 0 without aux buffers.
  int64_t aux_slots = 0;
  ByteCount slot_bytes;
  /// By position in the profile.
  std::vector<Component> states;
};

ProfileSizes SizesOf(const KvProfile& profile);

/// -1 (none) is good, else the slot must be in each aux buffer. kInvalidArgument, INVALID_FIELD.
absl::Status CheckAuxSlot(int64_t slot, const ProfileSizes& sizes);

/// Each component is of the profile and named once, each index is in each of its entries and named
/// once. kInvalidArgument, INVALID_FIELD.
absl::Status CheckStates(absl::Span<const StateIndices> states, const ProfileSizes& sizes);

/// Bytes of `pages` pages, of one slot of each aux buffer unless `aux_slot` is -1, and of `states`,
/// which must have been checked. Saturates.
ByteCount BytesOf(const ProfileSizes& sizes, int64_t pages, int64_t aux_slot,
                  absl::Span<const StateIndices> states);

/// Which buffer of the source goes to which of the target. Shared by all rooms of a session, so
/// that entries are paired once.
struct PairPlan {
  using Pairs = std::shared_ptr<const std::vector<transport::EntryPair>>;
  /// By (layer, kind, part).
  Pairs pages;
  /// By name.
  Pairs aux;
  /// By (kind, part), at the position of the target's component.
  std::vector<Pairs> states;
  /// Position of the source's component, by that of the target's.
  std::vector<int32_t> source_component;
};

/// kFailedPrecondition, ENGINES_INCOMPATIBLE with "field", "have" (target), "got" (source): a
/// buffer has no counterpart, or one of another item size; or one name stands for two buffers.
absl::StatusOr<PairPlan> MakePairPlan(const KvProfile& source, const KvProfile& target);

/// Aux slot and state indices of one side of a room.
struct Extras {
  int64_t aux_slot = -1;
  absl::Span<const StateIndices> states;
};

/// Says whether what the source sends is what the target expects. A component without indices is as
/// good as one that is not named. Both must have been checked against their profiles.
/// kFailedPrecondition, STATE_MISMATCH with "component", "have" (target), "got" (source).
absl::Status CheckExtrasPair(const PairPlan& plan, const Extras& source, const Extras& target);

/// The steps of one batch: `runs` for the pages; and, where `source` and `target` are given, aux
/// and states, index by index. They must pair (CheckExtrasPair). Empty lists give no step.
std::vector<transport::Step> BuildSteps(const PairPlan& plan, std::vector<RunPair> runs);
void AppendExtraSteps(const PairPlan& plan, const Extras& source, const Extras& target,
                      std::vector<transport::Step>& steps);

}  // namespace pageferry::agent
