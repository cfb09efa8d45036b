#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/common/clock.h"
#include "libs/common/gate.h"
#include "libs/common/scheduler.h"
#include "services/bootstrap/change_index.h"
#include "services/bootstrap/engine_proto.h"
#include "services/bootstrap/store.h"
#include "services/bootstrap/validate.h"

namespace pageferry::bootstrap {

/// Hands the changes of a store's table to any number of watchers.
///
/// Thread-safe. Nothing is queued for a watcher: each has a position, and takes what changed since
/// when it can write again; serialised engines are shared by all. So a slow one holds what it
/// writes and no more, and others never wait for it; it is cut off when one write takes too long.
/// Borrows clock and scheduler; a scheduler of its own keeps fan-out away from leases.
class WatchHub {
 public:
  struct Options {
    size_t max_watchers = 16'384;
    size_t max_removed = 16'384;  ///< engines that went, kept for resuming watches
    size_t max_message_bytes = (4 << 20) - 1024;
    /// A watcher that hears nothing else hears this often that nothing changed; spread a little
    /// below. With the tick it must stay below the 10 s of bootstrap.proto.
    absl::Duration progress_interval = absl::Seconds(9);
    absl::Duration tick = absl::Seconds(1);
  };

  /// An open watch. Called with no lock of the hub held, from any thread.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    /// There may be something to take.
    virtual void OnNews() = 0;
    /// Time has passed: see to progress and to writes that take too long.
    virtual void OnTick(MonotonicTime now) = 0;
    /// The service ends.
    virtual void OnStop() = 0;
  };

  /// Where a watch is. Used by one thread at a time.
  class Cursor {
   private:
    friend class WatchHub;
    std::optional<NamespaceName> name_space_;
    absl::flat_hash_set<EngineId> engines_;
    bool with_ranks_ = false;
    bool needs_snapshot_ = false;
    bool was_warming_up_ = false;
    TableVersion position_;
  };

  /// `version` is that of the table now, which holds no engine yet.
  WatchHub(const Options& options, TableVersion version, std::function<bool()> warming_up,
           const Clock& clock, Scheduler& scheduler);
  ~WatchHub();
  WatchHub(const WatchHub&) = delete;
  WatchHub& operator=(const WatchHub&) = delete;

  /// To be the store's listener.
  void OnUpdate(const TableUpdate& update);

  /// kOutOfRange, COMPACTED: the version to resume from is not kept, or not of this table; start
  /// anew without one.
  absl::StatusOr<Cursor> Open(const WatchQuery& query) const;

  /// From now on `watcher` is called. Not within its own calls.
  /// kResourceExhausted, LIMIT_REACHED. kUnavailable, DRAINING.
  absl::Status Add(std::shared_ptr<Watcher> watcher);
  void Remove(const Watcher* watcher);

  /// What the watch of `cursor` has not had yet, to be written in this order; none if nothing.
  /// After the end of a warm-up there comes another snapshot, also for a watch that resumed from a
  /// version of that time.
  /// kResourceExhausted, TOO_LARGE: it does not fit a message; watch fewer engines.
  absl::StatusOr<std::vector<WatchMessage>> Take(Cursor& cursor) const;
  /// A sign of life for a watch that has had everything.
  static WatchMessage Progress(const Cursor& cursor) { return MakeProgress(cursor.position_); }

  /// Calls OnStop of all watchers; adds no more.
  void Stop();

  const Options& options() const { return options_; }
  size_t watcher_count() const;

 private:
  using Fields = std::vector<std::shared_ptr<EncodedEngine>>;  // shared with Take outside the lock
  struct News {
    TableVersion before;
    TableVersion version;
    bool snapshot = false;
    bool warming_up = false;
    Fields engines;
    std::vector<EngineKey> removed;
  };

  News Collect(Cursor& cursor) const;
  void NoteWarmUp(bool warming_up) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool Matches(const Cursor& cursor, const EngineKey& key);
  std::vector<std::shared_ptr<Watcher>> Watchers() const;
  void ScheduleTick();
  template <class Function>
  void Schedule(MonotonicTime at, Function function);

  const Options options_;
  const std::function<bool()> warming_up_;
  const Clock& clock_;
  Scheduler& scheduler_;
  const std::shared_ptr<Gate> gate_;  // shared with tasks, which may start after the end

  mutable absl::Mutex mutex_;
  ChangeIndex index_ ABSL_GUARDED_BY(mutex_);
  // shared with Take, which serialises outside the lock
  absl::btree_map<EngineKey, std::shared_ptr<EncodedEngine>> engines_ ABSL_GUARDED_BY(mutex_);
  // shared: a call may be on its way when a watcher is removed
  absl::flat_hash_map<const Watcher*, std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
  bool fan_out_pending_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // A version at or behind which the warm-up had not ended; noted a tick late at most.
  mutable TableVersion warm_up_end_ ABSL_GUARDED_BY(mutex_);
  mutable bool warming_up_seen_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace pageferry::bootstrap
