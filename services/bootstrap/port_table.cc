#include "services/bootstrap/port_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/common/error.h"
#include "libs/common/status.h"

namespace pageferry::bootstrap {
namespace {

absl::Status NotReady(const EngineCells& cells) {
  const auto missing = cells.Missing(EngineView::kMaxMissingListed);
  const std::string names = absl::StrJoin(missing, ", ", [](std::string* out, const auto& rank) {
    absl::StrAppend(out, ToString(rank));
  });
  return MakeError(absl::StatusCode::kUnavailable, Reason::kEngineNotReady,
                   absl::StrCat(cells.missing_count(), " ranks hold no live lease: ", names),
                   {{"missing", names}, {"missing_count", absl::StrCat(cells.missing_count())}});
}

}  // namespace

absl::Status EngineNotFound(const EngineKey& key) {
  return MakeError(
      absl::StatusCode::kNotFound, Reason::kEngineNotFound,
      absl::StrCat("engine ", key.name_space.value(), "/", key.engine.value(), " is not known"));
}

PortTable::PortTable(const Options& options)
    : options_(options),
      epoch_floor_(options.epoch_floor),
      last_lease_(options.lease_floor),
      version_(options.version_floor) {}

absl::StatusOr<Grant> PortTable::Register(const Claim& claim, MonotonicTime now) {
  // The sharp end of leases: what has lapsed counts as such, also where the heap is behind.
  if (const Engine* engine = Find(claim.key);
      engine != nullptr && engine->cells->traits().shape == claim.traits.shape) {
    const Cell* cell = engine->cells->Find(ToRankIndex(claim.coordinate, claim.traits.shape));
    if (cell != nullptr && cell->live && !leases_.ExpiryOf(cell->lease, now)) {
      ++totals_.expiries;
      EndLease(cell->lease, now);
    }
  }
  PAGEFERRY_ASSIGN_OR_RETURN(const uint32_t slot, FindOrMake(claim));
  EngineCells& cells = *engines_[slot].cells;
  const LeaseId fresh = last_lease_.Next();
  const auto claimed = cells.MakeClaim(claim, fresh, epoch_floor_);
  if (!claimed.ok()) {
    // An engine that was made for nothing must go some day as well.
    if (engines_[slot].appeared) idle_.Set(slot, now + options_.engine_memory);
    return claimed.status();
  }
  if (claimed->forgotten != LeaseId()) refs_.erase(claimed->forgotten);
  if (claimed->ended != LeaseId()) leases_.Revoke(claimed->ended);
  cells_ += claimed->new_cell ? 1 : 0;
  totals_.supersedes += claimed->superseded ? 1 : 0;
  if (claimed->new_lease) {
    last_lease_ = fresh;
    ++totals_.registrations;
    refs_[fresh] = {slot, ToRankIndex(claim.coordinate, cells.traits().shape)};
  }
  leases_.Grant(claimed->lease, claim.ttl, now);
  idle_.Remove(slot);
  if (claimed->changed) Touch(slot, false);
  return Grant{.lease = claimed->lease,
               .epoch = claimed->epoch,
               .ttl = claim.ttl,
               .missing_count = cells.missing_count(),
               .version = version_};
}

absl::StatusOr<uint32_t> PortTable::FindOrMake(const Claim& claim) {
  const auto found = slots_.find(claim.key);
  if (found != slots_.end()) {
    const uint32_t slot = found->second;
    Engine& engine = engines_[slot];
    absl::Status agrees = engine.cells->CheckTraits(claim.traits);
    if (agrees.ok()) {
      const RankIndex rank = ToRankIndex(claim.coordinate, claim.traits.shape);
      if (engine.cells->Find(rank) == nullptr) PAGEFERRY_RETURN_IF_ERROR(MakeRoom(false, slot));
      return slot;
    }
    if (engine.cells->live_count() > 0) return agrees;
    // A new shape: whoever held a cell of the old one has no claim to keep its epoch.
    EpochMemory memory = engine.cells->ToMemory();
    memory.fence = memory.highest;
    ForgetCells(*engine.cells);
    engine.cells = std::make_unique<EngineCells>(claim.traits, memory);
    engine.appeared = true;
    return slot;
  }
  PAGEFERRY_RETURN_IF_ERROR(MakeRoom(true, std::nullopt));
  EpochMemory memory;
  if (const auto before = dropped_.find(claim.key); before != dropped_.end()) {
    memory = before->second;
    dropped_.erase(before);
  }
  auto slot = static_cast<uint32_t>(engines_.size());
  if (free_slots_.empty()) {
    engines_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  engines_[slot] = {.key = claim.key,
                    .cells = std::make_unique<EngineCells>(claim.traits, memory),
                    .appeared = true};
  slots_.emplace(claim.key, slot);
  return slot;
}

absl::Status PortTable::MakeRoom(bool engine_is_new, std::optional<uint32_t> spare) {
  const auto full = [&] {
    return (engine_is_new && slots_.size() >= options_.max_engines) || cells_ >= options_.max_cells;
  };
  while (full() && !idle_.empty() && idle_.top() != spare) Drop(idle_.top());
  if (!full()) return absl::OkStatus();
  const bool cells = cells_ >= options_.max_cells;
  const size_t limit = cells ? options_.max_cells : options_.max_engines;
  return MakeError(
      absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
      absl::StrCat("the table is full: ", limit, cells ? " cells" : " engines"),
      {{"limit", cells ? "max_cells" : "max_engines"}, {"value", absl::StrCat(limit)}});
}

Renewal PortTable::KeepAlive(LeaseId lease, MonotonicTime now) {
  Renewal renewal{.lease = lease};
  const auto ref = refs_.find(lease);
  if (ref == refs_.end()) return renewal;
  const Cell* cell = engines_[ref->second.slot].cells->Find(ref->second.rank);
  if (cell->lease != lease) {
    renewal.fate = LeaseFate::kSuperseded;
  } else if (const auto expiry = leases_.Renew(lease, now)) {
    renewal.fate = LeaseFate::kRenewed;
    renewal.ttl = *expiry - now;
  }
  return renewal;
}

bool PortTable::Deregister(LeaseId lease, MonotonicTime now) {
  if (!leases_.ExpiryOf(lease, now)) return false;
  ++totals_.deregistrations;
  EndLease(lease, now);
  return true;
}

void PortTable::EndLease(LeaseId lease, MonotonicTime now) {
  leases_.Revoke(lease);
  const auto ref = refs_.find(lease);
  if (ref == refs_.end()) return;
  const uint32_t slot = ref->second.slot;
  EngineCells& cells = *engines_[slot].cells;
  if (!cells.EndLease(ref->second.rank, lease)) return;
  if (cells.live_count() == 0) idle_.Set(slot, now + options_.engine_memory);
  Touch(slot, false);
}

bool PortTable::ExpireUpTo(MonotonicTime now, size_t max_count) {
  size_t done = 0;
  for (const LeaseId lease : leases_.ExpireUpTo(now, max_count)) {
    ++done;
    ++totals_.expiries;
    EndLease(lease, now);
  }
  for (; done < max_count && !idle_.empty() && idle_.top_expiry() <= now; ++done) {
    Drop(idle_.top());
  }
  return done >= max_count;
}

MonotonicTime PortTable::NextExpiry() const {
  const MonotonicTime lease = leases_.NextExpiry();
  return idle_.empty() ? lease : std::min(lease, idle_.top_expiry());
}

void PortTable::ForgetCells(const EngineCells& cells) {
  for (const auto& [rank, cell] : cells.cells()) {
    refs_.erase(cell.lease);
    refs_.erase(cell.superseded);
  }
  cells_ -= cells.cells().size();
}

void PortTable::Drop(uint32_t slot) {
  Engine& engine = engines_[slot];
  idle_.Remove(slot);
  ForgetCells(*engine.cells);
  if (dropped_.size() >= options_.max_engines) {
    epoch_floor_ = std::max(epoch_floor_, dropped_.begin()->second.highest);
    dropped_.erase(dropped_.begin());
  }
  dropped_[engine.key] = engine.cells->ToMemory();
  version_ = version_.Next();
  changes_[engine.key] = {.key = engine.key, .removed = true, .engine_level = true};
  ready_ -= engine.was_ready ? 1 : 0;
  slots_.erase(engine.key);
  engine = {};
  free_slots_.push_back(slot);
}

void PortTable::Touch(uint32_t slot, bool engine_level) {
  Engine& engine = engines_[slot];
  version_ = version_.Next();
  const bool ready = engine.cells->ready();
  engine_level |= engine.appeared || ready != engine.was_ready;
  engine.appeared = false;
  if (ready != engine.was_ready) ready ? ++ready_ : --ready_;
  engine.was_ready = ready;
  Change& change = changes_[engine.key];
  change.key = engine.key;
  change.removed = false;
  change.engine_level |= engine_level;
}

std::vector<PortTable::Change> PortTable::TakeChanges() {
  std::vector<Change> changes;
  changes.reserve(changes_.size());
  for (auto& [key, change] : changes_) changes.push_back(std::move(change));
  changes_.clear();
  return changes;
}

const PortTable::Engine* PortTable::Find(const EngineKey& key) const {
  const auto found = slots_.find(key);
  return found == slots_.end() ? nullptr : &engines_[found->second];
}

EngineViewPtr PortTable::MakeView(const Engine& engine, bool with_ranks) const {
  const EngineCells& cells = *engine.cells;
  auto view = std::make_shared<EngineView>();
  view->key = engine.key;
  view->traits = cells.traits();
  view->ready = cells.ready();
  view->live_count = cells.live_count();
  view->missing_count = cells.missing_count();
  view->missing = cells.Missing(EngineView::kMaxMissingListed);
  if (!with_ranks) return view;
  view->ranks.reserve(static_cast<size_t>(cells.live_count()));
  for (const auto& [rank, cell] : cells.cells()) {
    if (!cell.live) continue;
    view->ranks.push_back({.rank = rank,
                           .epoch = cell.epoch,
                           .expiry = leases_.ExpiryOf(cell.lease, MonotonicTime::InfinitePast())
                                         .value_or(MonotonicTime::InfinitePast()),
                           .info = cell.info});
  }
  return view;
}

EngineViewPtr PortTable::View(const EngineKey& key, bool with_ranks) const {
  const Engine* engine = Find(key);
  return engine == nullptr ? nullptr : MakeView(*engine, with_ranks);
}

bool PortTable::IsReady(const EngineKey& key) const {
  const Engine* engine = Find(key);
  return engine != nullptr && engine->cells->ready();
}

absl::StatusOr<std::vector<RankView>> PortTable::Resolve(
    const EngineKey& key, absl::Span<const RankCoordinate> coordinates) const {
  const Engine* engine = Find(key);
  if (engine == nullptr) return EngineNotFound(key);
  const EngineCells& cells = *engine->cells;
  for (const RankCoordinate& coordinate : coordinates) {
    PAGEFERRY_RETURN_IF_ERROR(ValidateCoordinate(coordinate, cells.traits().shape));
  }
  if (!cells.ready()) return NotReady(cells);
  std::vector<RankView> ranks;
  ranks.reserve(coordinates.size());
  for (const RankCoordinate& coordinate : coordinates) {
    const RankIndex rank = ToRankIndex(coordinate, cells.traits().shape);
    const Cell* cell = cells.Find(rank);
    ranks.push_back({.rank = rank,
                     .epoch = cell->epoch,
                     .expiry = leases_.ExpiryOf(cell->lease, MonotonicTime::InfinitePast())
                                   .value_or(MonotonicTime::InfinitePast()),
                     .info = cell->info});
  }
  return ranks;
}

PortTable::Page PortTable::List(const std::optional<NamespaceName>& name_space,
                                const EngineKey& from, size_t limit, bool with_ranks,
                                size_t max_ranks) const {
  Page page;
  size_t ranks = 0;
  for (auto entry = slots_.lower_bound(from); entry != slots_.end(); ++entry) {
    if (name_space && entry->first.name_space != *name_space) break;
    if (page.engines.size() >= limit || ranks > max_ranks) {
      page.next = entry->first;
      break;
    }
    page.engines.push_back(MakeView(engines_[entry->second], with_ranks));
    ranks += page.engines.back()->ranks.size();
  }
  return page;
}

PortTable::Counts PortTable::counts() const {
  Counts counts = totals_;
  counts.engines_ready = ready_;
  counts.engines_not_ready = slots_.size() - ready_;
  counts.leases = leases_.size();
  counts.cells = cells_;
  counts.remembered_leases = refs_.size();
  return counts;
}

}  // namespace pageferry::bootstrap
