#include "services/bootstrap/engine_cells.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/error.h"
#include "libs/common/status.h"

namespace pageferry::bootstrap {
namespace {

/// Finds the first difference of two sets of traits and says it.
class Comparison {
 public:
  template <class T>
  void Field(absl::string_view name, const T& have, const T& got) {
    if (!difference_.ok() || have == got) return;
    const ErrorMetadata metadata = {
        {"field", std::string(name)}, {"have", absl::StrCat(have)}, {"got", absl::StrCat(got)}};
    difference_ = MakeError(absl::StatusCode::kFailedPrecondition, reason_,
                            absl::StrCat("the engine lives with another ", name, ": have \"", have,
                                         "\", got \"", got, "\""),
                            metadata);
  }
  void set_reason(Reason reason) { reason_ = reason; }
  absl::Status difference() const { return difference_; }

 private:
  Reason reason_ = Reason::kShapeMismatch;
  absl::Status difference_;
};

absl::string_view Name(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }
absl::string_view Name(DpPolicy policy) {
  return policy == DpPolicy::kRoomModulo ? "room_modulo" : "directory";
}
absl::string_view Name(bool value) { return value ? "true" : "false"; }

}  // namespace

EngineCells::EngineCells(EngineTraits traits, EpochMemory before)
    : traits_(std::move(traits)), before_(before), rank_count_(RankCount(traits_.shape)) {}

absl::Status EngineCells::CheckTraits(const EngineTraits& got) const {
  Comparison compare;
  compare.Field("shape.dp", traits_.shape.dp, got.shape.dp);
  compare.Field("shape.cp", traits_.shape.cp, got.shape.cp);
  compare.Field("shape.tp", traits_.shape.tp, got.shape.tp);
  compare.Field("shape.pp", traits_.shape.pp, got.shape.pp);
  compare.set_reason(Reason::kProfileMismatch);
  compare.Field("role", Name(traits_.role), Name(got.role));
  compare.Field("dp_policy", Name(traits_.dp_policy), Name(got.dp_policy));
  const Profile& have = traits_.profile;
  const Profile& want = got.profile;
  compare.Field("profile.page_tokens", have.page_tokens, want.page_tokens);
  compare.Field("profile.data_type", have.data_type, want.data_type);
  compare.Field("profile.layout", have.layout, want.layout);
  compare.Field("profile.attention", have.attention, want.attention);
  compare.Field("profile.total_kv_heads", have.total_kv_heads, want.total_kv_heads);
  compare.Field("profile.head_dim", have.head_dim, want.head_dim);
  compare.Field("profile.model_fingerprint", have.model_fingerprint, want.model_fingerprint);
  compare.Field("profile.layer_count", have.layer_count, want.layer_count);
  compare.Field("profile.all_cp_ranks_send", Name(have.all_cp_ranks_send),
                Name(want.all_cp_ranks_send));
  compare.Field("profile.kv_shards", have.kv_shards, want.kv_shards);
  compare.Field("profile.decode_cp", have.decode_cp, want.decode_cp);
  compare.Field("profile.dsa_layer_split", Name(have.dsa_layer_split), Name(want.dsa_layer_split));
  return compare.difference();
}

absl::StatusOr<EngineCells::Claimed> EngineCells::MakeClaim(const Claim& claim, LeaseId fresh,
                                                            Epoch floor) {
  const RankIndex rank = ToRankIndex(claim.coordinate, traits_.shape);
  const auto found = cells_.find(rank);
  if (found == cells_.end()) {
    Cell cell;
    PAGEFERRY_ASSIGN_OR_RETURN(const Claimed claimed,
                               Take(cell, claim, fresh, floor, /*known=*/false));
    cells_.emplace(rank, std::move(cell));
    return claimed;
  }
  Cell& cell = found->second;
  if (claim.incarnation < cell.holder) {
    cell.highest = std::max(cell.highest, claim.last_epoch);
    highest_ = std::max(highest_, cell.highest);
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kSuperseded,
                     absl::StrCat("a younger incarnation holds ", ToString(claim.coordinate)),
                     {{"coordinate", ToString(claim.coordinate)}});
  }
  if (cell.holder < claim.incarnation) return Take(cell, claim, fresh, floor, /*known=*/true);

  Claimed claimed{.lease = cell.lease};
  if (!cell.live) {
    claimed.lease = fresh;
    claimed.forgotten = cell.lease;
    claimed.new_lease = true;
    cell.lease = fresh;
    cell.live = true;
    ++live_count_;
  }
  claimed.changed =
      claimed.new_lease || claim.last_epoch > cell.highest || *cell.info != claim.info;
  if (claim.last_epoch > cell.highest) cell.epoch = cell.highest = claim.last_epoch;
  highest_ = std::max(highest_, cell.highest);
  if (claimed.changed) cell.info = std::make_shared<const RankInfo>(claim.info);
  claimed.epoch = cell.epoch;
  return claimed;
}

absl::StatusOr<EngineCells::Claimed> EngineCells::Take(Cell& cell, const Claim& claim,
                                                       LeaseId fresh, Epoch floor, bool known) {
  const Epoch bar = known ? cell.highest : before_.fence;
  Epoch epoch = claim.last_epoch;
  if (epoch <= bar) {
    const Epoch below = std::max({epoch, cell.highest, before_.highest, floor});
    epoch = below.Next();
    if (epoch == below) {
      return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                       "no higher epoch exists for this cell",
                       {{"limit", "epoch"}, {"value", absl::StrCat(below.value())}});
    }
    // What was given out before this service started may have been another incarnation's.
    fence_ = std::max(fence_, known ? epoch : floor);
  } else if (known) {
    fence_ = std::max(fence_, epoch);
  }
  Claimed claimed{.epoch = epoch,
                  .lease = fresh,
                  .forgotten = cell.superseded,
                  .new_cell = !known,
                  .new_lease = true,
                  .superseded = known,
                  .changed = true};
  if (cell.live) {
    claimed.ended = cell.lease;
  } else {
    ++live_count_;
  }
  cell.superseded = cell.lease;
  cell.lease = fresh;
  cell.live = true;
  cell.holder = claim.incarnation;
  cell.epoch = cell.highest = epoch;
  cell.info = std::make_shared<const RankInfo>(claim.info);
  highest_ = std::max(highest_, epoch);
  return claimed;
}

bool EngineCells::EndLease(RankIndex rank, LeaseId lease) {
  const auto found = cells_.find(rank);
  if (found == cells_.end() || !found->second.live || found->second.lease != lease) return false;
  found->second.live = false;
  --live_count_;
  return true;
}

EpochMemory EngineCells::ToMemory() const {
  return {.highest = std::max(before_.highest, highest_), .fence = std::max(before_.fence, fence_)};
}

const Cell* EngineCells::Find(RankIndex rank) const {
  const auto found = cells_.find(rank);
  return found == cells_.end() ? nullptr : &found->second;
}

std::vector<RankCoordinate> EngineCells::Missing(size_t limit) const {
  std::vector<RankCoordinate> missing;
  int64_t next = 0;
  const auto add_until = [&](int64_t end) {
    for (; next < end && missing.size() < limit; ++next) {
      missing.push_back(ToCoordinate(RankIndex(next), traits_.shape));
    }
  };
  for (const auto& [rank, cell] : cells_) {
    if (!cell.live) continue;
    add_until(rank.value());
    next = std::max(next, rank.value() + 1);
    if (missing.size() >= limit) return missing;
  }
  add_until(rank_count_);
  return missing;
}

}  // namespace pageferry::bootstrap
