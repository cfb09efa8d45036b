#include "services/bootstrap/memory_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::bootstrap {
namespace {

constexpr size_t kLeasesPerStep = 512;
constexpr size_t kRoomsPerStep = 4096;
constexpr size_t kRanksPerPage = 10'000;
const absl::Duration kStall = absl::Seconds(1);  // a step that is later was stopped
const absl::Duration kHold = absl::Seconds(2);   // then leases are not ended for so long

PortTable::Options WithFloors(PortTable::Options options, absl::Time wall) {
  const int64_t millis = std::max<int64_t>(absl::ToUnixMillis(wall), 0);
  // Leases and versions come faster than epochs, so that their floors move faster: 2^20 leases and
  // 1,000 versions for each millisecond of an earlier life.
  options.epoch_floor = Epoch(millis);
  options.lease_floor = LeaseId(SaturatingMultiply(millis, 1 << 20));
  options.version_floor = TableVersion(SaturatingMultiply(millis, 1000));
  return options;
}

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "the service is draining");
}

absl::Status WakeStatus(WakeCause cause) {
  switch (cause) {
    case WakeCause::kCancelled:
      return absl::CancelledError("the caller gave up");
    case WakeCause::kStopping:
      return Draining();
    case WakeCause::kNews:
    case WakeCause::kTimeout:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

MemoryStore::MemoryStore(const Options& options, const Clock& clock, Scheduler& scheduler,
                         BootstrapProbe& probe)
    : options_(options),
      clock_(clock),
      scheduler_(scheduler),
      probe_(probe),
      warm_until_(clock.Now() + options.warm_up),
      gate_(std::make_shared<Gate>()),
      table_(WithFloors(options.table, clock.WallNow())),
      rooms_(options.max_rooms) {}

MemoryStore::~MemoryStore() {
  Drain();
  gate_->Close();
  (void)gate_->WaitUntilIdle(MonotonicTime::InfiniteFuture());
}

void MemoryStore::Drain() {
  std::vector<WaitList::Wait> waits;
  std::vector<absl::AnyInvocable<void()>> syncs;
  {
    const absl::MutexLock lock(&mutex_);
    draining_ = true;
    waits = waits_.TakeAll();
    syncs = std::exchange(syncs_, {});
  }
  Wake(std::move(waits), WakeCause::kStopping);
  for (auto& done : syncs) done();
}

void MemoryStore::Sync(absl::AnyInvocable<void()> done) {
  {
    const absl::MutexLock lock(&mutex_);
    if (!draining_ && (table_.has_changes() || telling_)) {
      syncs_.push_back(std::move(done));
      const MonotonicTime now = clock_.Now();
      news_at_ = now;
      SettleLocked(now);
      return;
    }
  }
  done();
}

void MemoryStore::SetListener(Listener listener) { listener_ = std::move(listener); }

void MemoryStore::Register(Claim claim, Done<absl::StatusOr<Grant>> done) {
  std::vector<WaitList::Wait> woken;
  const auto grant = [&] {
    const absl::MutexLock lock(&mutex_);
    const MonotonicTime now = clock_.Now();
    auto result = table_.Register(claim, now);
    if (result.ok() && result->missing_count == 0) woken = waits_.TakeReady(claim.key);
    SettleLocked(now);
    return result;
  }();
  done(grant);
  Wake(std::move(woken), WakeCause::kNews);
}

void MemoryStore::KeepAlive(std::vector<LeaseId> leases, Done<std::vector<Renewal>> done) {
  std::vector<Renewal> renewals;
  renewals.reserve(leases.size());
  int64_t renewed = 0;
  {
    const absl::MutexLock lock(&mutex_);
    const MonotonicTime now = clock_.Now();
    for (const LeaseId lease : leases) {
      renewals.push_back(table_.KeepAlive(lease, now));
      renewed += renewals.back().fate == LeaseFate::kRenewed ? 1 : 0;
    }
  }
  probe_.LeasesRenewed(renewed);
  probe_.LeasesLost(static_cast<int64_t>(renewals.size()) - renewed);
  done(std::move(renewals));
}

void MemoryStore::Deregister(LeaseId lease, Done<absl::StatusOr<bool>> done) {
  const bool existed = [&] {
    const absl::MutexLock lock(&mutex_);
    const MonotonicTime now = clock_.Now();
    const bool result = table_.Deregister(lease, now);
    SettleLocked(now);
    return result;
  }();
  done(existed);
}

absl::Status MemoryStore::UnknownLocked(const EngineKey& key) const {
  const absl::Duration left = warm_until_ - clock_.Now();
  if (left <= absl::ZeroDuration()) return EngineNotFound(key);
  return MakeError(absl::StatusCode::kUnavailable, Reason::kWarmingUp,
                   absl::StrCat("engine ", key.name_space.value(), "/", key.engine.value(),
                                " is not known, but the service started empty a short time ago"),
                   {{"retry_after_ms", absl::StrCat(absl::ToInt64Milliseconds(left) + 1)}});
}

void MemoryStore::GetEngine(const EngineKey& key, bool with_ranks,
                            Done<absl::StatusOr<EngineAnswer>> done) {
  auto answer = [&]() -> absl::StatusOr<EngineAnswer> {
    const absl::MutexLock lock(&mutex_);
    EngineViewPtr view = table_.View(key, with_ranks);
    if (view == nullptr) return UnknownLocked(key);
    return EngineAnswer{std::move(view), table_.version(), clock_.Now()};
  }();
  done(std::move(answer));
}

void MemoryStore::ListEngines(const EngineListQuery& query,
                              Done<absl::StatusOr<EngineListAnswer>> done) {
  EngineListAnswer answer;
  {
    const absl::MutexLock lock(&mutex_);
    PortTable::Page page =
        table_.List(query.name_space, query.from, query.limit, query.with_ranks, kRanksPerPage);
    answer = {.engines = std::move(page.engines),
              .next = std::move(page.next),
              .version = table_.version(),
              .now = clock_.Now()};
  }
  answer.warming_up = warming_up();
  done(std::move(answer));
}

absl::StatusOr<RanksAnswer> MemoryStore::ResolveLocked(
    const EngineKey& key, const std::vector<RankCoordinate>& coordinates) const {
  auto ranks = table_.Resolve(key, coordinates);
  if (ReasonOf(ranks.status()) == Reason::kEngineNotFound) return UnknownLocked(key);
  if (!ranks.ok()) return ranks.status();
  return RanksAnswer{.ranks = *std::move(ranks), .version = table_.version(), .now = clock_.Now()};
}

absl::Status MemoryStore::MayWaitLocked(size_t rooms) const {
  if (draining_) return Draining();
  if (waits_.size() >= options_.max_waiting) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                     "too many calls wait",
                     {{"limit", "max_waiting"}, {"value", absl::StrCat(options_.max_waiting)}});
  }
  // A call may ask for thousands, so their number bounds the memory and not that of the calls.
  if (rooms > options_.max_rooms - std::min(options_.max_rooms, waits_.rooms())) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                     "too many rooms are waited for",
                     {{"limit", "max_rooms"}, {"value", absl::StrCat(options_.max_rooms)}});
  }
  return absl::OkStatus();
}

WaitId MemoryStore::AddWaitLocked(WaitList::Wait wait, MonotonicTime deadline) {
  const WaitId id = last_wait_ = last_wait_.Next();
  wait.timeout = scheduler_.RunAt(deadline, [this, gate = gate_, id] {
    const auto holder = gate->Enter();
    if (holder) TakeAndWake(id, WakeCause::kTimeout);
  });
  waits_.Add(id, std::move(wait));
  return id;
}

WaitId MemoryStore::ResolveRanks(EngineKey key, std::vector<RankCoordinate> coordinates,
                                 MonotonicTime deadline, RanksDone done) {
  absl::StatusOr<RanksAnswer> answer = absl::UnknownError("");
  {
    const absl::MutexLock lock(&mutex_);
    answer = ResolveLocked(key, coordinates);
    const bool may_come = absl::IsUnavailable(answer.status()) || absl::IsNotFound(answer.status());
    if (may_come && clock_.Now() < deadline) {
      const absl::Status may_wait = MayWaitLocked(0);
      if (may_wait.ok()) {
        WaitList::Wait wait{.key = key};
        wait.finish = [this, key = std::move(key), coordinates = std::move(coordinates),
                       done = std::move(done)](WakeCause cause) mutable {
          const absl::Status status = WakeStatus(cause);
          done(status.ok() ? ResolveNow(key, coordinates) : status);
        };
        return AddWaitLocked(std::move(wait), deadline);
      }
      answer = may_wait;
    }
  }
  done(std::move(answer));
  return WaitId();
}

absl::StatusOr<RanksAnswer> MemoryStore::ResolveNow(
    const EngineKey& key, const std::vector<RankCoordinate>& coordinates) const {
  const absl::MutexLock lock(&mutex_);
  return ResolveLocked(key, coordinates);
}

void MemoryStore::PlaceRooms(const EngineKey& key, const std::vector<Placement>& placements,
                             absl::Duration ttl, Done<absl::StatusOr<int64_t>> done) {
  std::vector<WaitList::Wait> woken;
  const auto moved = [&] {
    const absl::MutexLock lock(&mutex_);
    const MonotonicTime now = clock_.Now();
    auto result = rooms_.Place(key, placements, ttl, now);
    if (result.ok() && waits_.rooms() > 0) {
      const auto is_placed = [&](RoomId room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !rooms_.Lookup(key, {&room, 1}, now).empty();
      };
      for (const Placement& placement : placements) {
        for (auto& wait : waits_.TakePlaced(key, placement.room, is_placed)) {
          woken.push_back(std::move(wait));
        }
      }
    }
    SettleLocked(now);
    return result;
  }();
  if (moved.ok()) {
    probe_.RoomsPlaced(static_cast<int64_t>(placements.size()));
    probe_.RoomsMoved(*moved);
  }
  done(moved);
  Wake(std::move(woken), WakeCause::kNews);
}

WaitId MemoryStore::LookupRooms(EngineKey key, std::vector<RoomId> rooms, MonotonicTime deadline,
                                RoomsDone done) {
  absl::StatusOr<std::vector<Placement>> answer;
  {
    const absl::MutexLock lock(&mutex_);
    const MonotonicTime now = clock_.Now();
    answer = rooms_.Lookup(key, rooms, now);
    if (answer->size() < rooms.size() && now < deadline) {
      const absl::Status may_wait = MayWaitLocked(rooms.size());
      if (may_wait.ok()) {
        // The answers are in the order of the request: the first gap is the first missing room.
        size_t next = 0;
        while (next < answer->size() && (*answer)[next].room == rooms[next]) ++next;
        WaitList::Wait wait{.key = key, .rooms = rooms, .next_room = next};
        wait.finish = [this, key = std::move(key), rooms = std::move(rooms),
                       done = std::move(done)](WakeCause cause) mutable {
          const absl::Status status = WakeStatus(cause);
          if (!status.ok()) return done(status);
          done(LookupNow(key, rooms));
        };
        return AddWaitLocked(std::move(wait), deadline);
      }
      answer = may_wait;
    }
  }
  done(std::move(answer));
  return WaitId();
}

std::vector<Placement> MemoryStore::LookupNow(const EngineKey& key,
                                              const std::vector<RoomId>& rooms) const {
  const absl::MutexLock lock(&mutex_);
  return rooms_.Lookup(key, rooms, clock_.Now());
}

void MemoryStore::CancelWait(WaitId wait) { TakeAndWake(wait, WakeCause::kCancelled); }

void MemoryStore::TakeAndWake(WaitId id, WakeCause cause) {
  std::vector<WaitList::Wait> waits;
  {
    const absl::MutexLock lock(&mutex_);
    auto wait = waits_.Take(id);
    if (!wait) return;
    waits.push_back(*std::move(wait));
  }
  Wake(std::move(waits), cause);
}

void MemoryStore::Wake(std::vector<WaitList::Wait> waits, WakeCause cause) {
  for (WaitList::Wait& wait : waits) {
    scheduler_.Cancel(wait.timeout);
    wait.finish(cause);
  }
}

bool MemoryStore::warming_up() const { return clock_.Now() < warm_until_; }

Store::Stats MemoryStore::stats() const {
  const absl::MutexLock lock(&mutex_);
  const PortTable::Counts counts = table_.counts();
  return {.engines_ready = counts.engines_ready,
          .engines_not_ready = counts.engines_not_ready,
          .leases = counts.leases,
          .cells = counts.cells,
          .rooms = rooms_.size(),
          .waiting = waits_.size(),
          .version = table_.version()};
}

void MemoryStore::SettleLocked(MonotonicTime now) {
  const PortTable::Counts counts = table_.counts();
  probe_.Registered(counts.registrations - counted_.registrations);
  probe_.Deregistered(counts.deregistrations - counted_.deregistrations);
  probe_.Expired(counts.expiries - counted_.expiries);
  probe_.Superseded(counts.supersedes - counted_.supersedes);
  counted_ = counts;
  if (table_.has_changes() && !news_at_) news_at_ = now + options_.batch_delay;
  MonotonicTime next = std::min(std::max(table_.NextExpiry(), hold_until_), rooms_.NextExpiry());
  if (news_at_) next = std::min(next, *news_at_);
  if (next >= step_at_) return;
  scheduler_.Cancel(step_);
  step_at_ = next;
  step_ = scheduler_.RunAt(next, [this, gate = gate_] {
    const auto holder = gate->Enter();
    if (holder) Step();
  });
}

void MemoryStore::Step() {
  TableUpdate update;
  std::vector<absl::AnyInvocable<void()>> syncs;
  {
    const absl::MutexLock lock(&mutex_);
    const MonotonicTime now = clock_.Now();
    if (now - step_at_ > kStall) hold_until_ = now + kHold;
    step_at_ = MonotonicTime::InfiniteFuture();
    if (now >= hold_until_) table_.ExpireUpTo(now, kLeasesPerStep);
    rooms_.ExpireUpTo(now, kRoomsPerStep);
    if (news_at_ && *news_at_ <= now) {
      news_at_.reset();
      syncs = std::exchange(syncs_, {});
      for (PortTable::Change& change : table_.TakeChanges()) {
        update.changes.push_back({.key = change.key,
                                  .view = table_.View(change.key, /*with_ranks=*/true),
                                  .engine_level = change.engine_level});
      }
      update.version = table_.version();
      telling_ = true;
    }
    SettleLocked(now);
    if (!telling_) return;
  }
  if (!update.changes.empty() && listener_) listener_(update);
  {
    const absl::MutexLock lock(&mutex_);
    telling_ = false;
  }
  for (auto& done : syncs) done();
}

}  // namespace pageferry::bootstrap
