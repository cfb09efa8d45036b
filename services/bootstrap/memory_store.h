#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/clock.h"
#include "libs/common/gate.h"
#include "libs/common/scheduler.h"
#include "services/bootstrap/bootstrap_probe.h"
#include "services/bootstrap/port_table.h"
#include "services/bootstrap/room_directory.h"
#include "services/bootstrap/store.h"
#include "services/bootstrap/wait_list.h"

namespace pageferry::bootstrap {

/// Both tables in this process's memory: for one server, starting empty.
///
/// Thread-safe: one mutex, held for short steps. Borrows clock, scheduler and probe, which must
/// outlive it. Epochs, lease ids and versions start above what an earlier life of the service gave
/// out, by the wall clock at its start. A process that was stopped for a while does not take all
/// ranks for dead when it goes on: those whose leases lapsed meanwhile have two seconds to come
/// back.
class MemoryStore final : public Store {
 public:
  struct Options {
    PortTable::Options table;      ///< the floors are set by the store
    size_t max_rooms = 1'048'576;  ///< placed; as many may be waited for
    size_t max_waiting = 65'536;
    absl::Duration warm_up = absl::Seconds(6);
    /// Changes that come within this time of the first are told together.
    absl::Duration batch_delay = absl::Milliseconds(10);
  };

  MemoryStore(const Options& options, const Clock& clock, Scheduler& scheduler,
              BootstrapProbe& probe);
  ~MemoryStore() override;

  void SetListener(Listener listener) override;
  void Register(Claim claim, Done<absl::StatusOr<Grant>> done) override;
  void KeepAlive(std::vector<LeaseId> leases, Done<std::vector<Renewal>> done) override;
  void Deregister(LeaseId lease, Done<absl::StatusOr<bool>> done) override;
  void GetEngine(const EngineKey& key, bool with_ranks,
                 Done<absl::StatusOr<EngineAnswer>> done) override;
  void ListEngines(const EngineListQuery& query,
                   Done<absl::StatusOr<EngineListAnswer>> done) override;
  WaitId ResolveRanks(EngineKey key, std::vector<RankCoordinate> coordinates,
                      MonotonicTime deadline, Done<absl::StatusOr<RanksAnswer>> done) override;
  void PlaceRooms(const EngineKey& key, const std::vector<Placement>& placements,
                  absl::Duration ttl, Done<absl::StatusOr<int64_t>> done) override;
  WaitId LookupRooms(EngineKey key, std::vector<RoomId> rooms, MonotonicTime deadline,
                     Done<absl::StatusOr<std::vector<Placement>>> done) override;
  void CancelWait(WaitId wait) override;
  void Sync(absl::AnyInvocable<void()> done) override;
  void Drain() override;
  bool warming_up() const override;
  Stats stats() const override;

 private:
  using RanksDone = Done<absl::StatusOr<RanksAnswer>>;
  using RoomsDone = Done<absl::StatusOr<std::vector<Placement>>>;

  absl::StatusOr<RanksAnswer> ResolveLocked(const EngineKey& key,
                                            const std::vector<RankCoordinate>& coordinates) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status UnknownLocked(const EngineKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<RanksAnswer> ResolveNow(const EngineKey& key,
                                         const std::vector<RankCoordinate>& coordinates) const;
  std::vector<Placement> LookupNow(const EngineKey& key, const std::vector<RoomId>& rooms) const;
  /// A call that waits for so many rooms.
  absl::Status MayWaitLocked(size_t rooms) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WaitId AddWaitLocked(WaitList::Wait wait, MonotonicTime deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeAndWake(WaitId id, WakeCause cause);
  void Wake(std::vector<WaitList::Wait> waits, WakeCause cause);
  /// To be called at the end of each change: counts it and sets the timer.
  void SettleLocked(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// One bounded step of expiry, and news for the listener if it is time. On the scheduler.
  void Step();

  const Options options_;
  const Clock& clock_;
  Scheduler& scheduler_;
  BootstrapProbe& probe_;
  const MonotonicTime warm_until_;
  const std::shared_ptr<Gate> gate_;  // shared with tasks, which may start after the end
  Listener listener_;                 // used by Step alone

  mutable absl::Mutex mutex_;
  PortTable table_ ABSL_GUARDED_BY(mutex_);
  RoomDirectory rooms_ ABSL_GUARDED_BY(mutex_);
  WaitList waits_ ABSL_GUARDED_BY(mutex_);
  WaitId last_wait_ ABSL_GUARDED_BY(mutex_);
  PortTable::Counts counted_ ABSL_GUARDED_BY(mutex_);
  std::optional<MonotonicTime> news_at_ ABSL_GUARDED_BY(mutex_);
  bool telling_ ABSL_GUARDED_BY(mutex_) = false;  // the listener is being called
  std::vector<absl::AnyInvocable<void()>> syncs_ ABSL_GUARDED_BY(mutex_);
  TaskId step_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime hold_until_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfinitePast();
  MonotonicTime step_at_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfiniteFuture();
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pageferry::bootstrap
