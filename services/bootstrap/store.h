#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/ids.h"
#include "services/bootstrap/records.h"
#include "services/bootstrap/room_directory.h"

namespace pageferry::bootstrap {

/// Changes of the table that became visible together.
struct TableUpdate {
  struct Change {
    EngineKey key;
    EngineViewPtr view;         ///< with ranks; null: the engine is not known any more
    bool engine_level = false;  ///< it appeared, went, has new traits, or `ready` turned
  };
  TableVersion version;  ///< of the table with these changes; grows from update to update
  std::vector<Change> changes;
};

/// An engine, or a list of them, with the version of the table that it was read from.
struct EngineAnswer {
  EngineViewPtr engine;
  TableVersion version;
  MonotonicTime now;  ///< to count times to live from
};
struct EngineListAnswer {
  std::vector<EngineViewPtr> engines;
  std::optional<EngineKey> next;  ///< where the next page starts
  TableVersion version;
  MonotonicTime now;
  bool warming_up = false;
};
struct RanksAnswer {
  std::vector<RankView> ranks;  ///< in the order of the request
  TableVersion version;
  MonotonicTime now;
};
struct EngineListQuery {
  std::optional<NamespaceName> name_space;  ///< nothing: all
  EngineKey from;
  size_t limit = 100;
  bool with_ranks = false;
};

/// Names a call that may wait. 0 names none.
using WaitId = StrongNumber<struct WaitIdTag, int64_t>;

/// What the service keeps: the port table and the room directory, wherever they are. Several
/// servers may share one, so no answer is good for longer than its version.
///
/// Thread-safe. Arguments are valid by the rules of bootstrap.proto. Each `Done` is called exactly
/// once, inside the call or later on another thread, with no lock of the store held; it must not
/// block. Drain before destroying it.
///
/// While a store that started empty is warming up it says kUnavailable, WARMING_UP of engines that
/// it does not know, instead of kNotFound.
class Store {
 public:
  template <class T>
  using Done = absl::AnyInvocable<void(T)>;

  /// Hears of every change, in order, one call at a time, soon after it happened.
  using Listener = absl::AnyInvocable<void(const TableUpdate& update)>;

  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  /// At most once, before the first call that changes anything.
  virtual void SetListener(Listener listener) = 0;

  /// The status codes of `PortTable::Register`.
  virtual void Register(Claim claim, Done<absl::StatusOr<Grant>> done) = 0;
  virtual void KeepAlive(std::vector<LeaseId> leases, Done<std::vector<Renewal>> done) = 0;
  /// Answers whether the lease lived.
  virtual void Deregister(LeaseId lease, Done<absl::StatusOr<bool>> done) = 0;

  virtual void GetEngine(const EngineKey& key, bool with_ranks,
                         Done<absl::StatusOr<EngineAnswer>> done) = 0;
  virtual void ListEngines(const EngineListQuery& query,
                           Done<absl::StatusOr<EngineListAnswer>> done) = 0;

  /// As `PortTable::Resolve`. Until `deadline` it waits for an engine that is not known or not
  /// ready; a deadline in the past does not wait.
  /// kResourceExhausted, LIMIT_REACHED: too many calls wait.
  virtual WaitId ResolveRanks(EngineKey key, std::vector<RankCoordinate> coordinates,
                              MonotonicTime deadline, Done<absl::StatusOr<RanksAnswer>> done) = 0;

  /// As `RoomDirectory::Place`.
  virtual void PlaceRooms(const EngineKey& key, const std::vector<Placement>& placements,
                          absl::Duration ttl, Done<absl::StatusOr<int64_t>> done) = 0;
  /// As `RoomDirectory::Lookup`. Until `deadline` it waits for all to be placed.
  /// kResourceExhausted, LIMIT_REACHED: too many calls wait.
  virtual WaitId LookupRooms(EngineKey key, std::vector<RoomId> rooms, MonotonicTime deadline,
                             Done<absl::StatusOr<std::vector<Placement>>> done) = 0;

  /// Answers a call that waits at once with kCancelled. Does nothing if it does not wait.
  virtual void CancelWait(WaitId wait) = 0;

  /// Calls `done` when the listener has heard of every change that was answered before this call,
  /// so that a watch shows its opener what it did.
  virtual void Sync(absl::AnyInvocable<void()> done) = 0;

  /// Answers all calls that wait with kUnavailable, DRAINING; from now on none waits, for Sync
  /// neither.
  virtual void Drain() = 0;

  /// It started empty a short time ago: what is not there may come back.
  virtual bool warming_up() const = 0;

  /// For metrics.
  struct Stats {
    size_t engines_ready = 0;
    size_t engines_not_ready = 0;
    size_t leases = 0;
    size_t cells = 0;
    size_t rooms = 0;
    size_t waiting = 0;
    TableVersion version;
  };
  virtual Stats stats() const = 0;
};

}  // namespace pageferry::bootstrap
