#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "libs/common/ids.h"
#include "libs/common/scheduler.h"
#include "services/bootstrap/records.h"
#include "services/bootstrap/store.h"

namespace pageferry::bootstrap {

/// Why a call stops waiting.
enum class WakeCause { kNews, kTimeout, kCancelled, kStopping };

/// Calls that wait for an engine to become ready, or for all of their rooms to be placed.
///
/// Thread-compatible; pure. Whoever takes a wait out calls its `finish`, once, with no lock held.
class WaitList {
 public:
  struct Wait {
    EngineKey key;
    /// Rooms that must be placed; none: the engine must be ready.
    std::vector<RoomId> rooms;
    TaskId timeout;
    absl::AnyInvocable<void(WakeCause cause)> finish;
    size_t next_room = 0;  ///< the first of `rooms` that was missing at the last look
  };

  /// Adds a wait whose `rooms[next_room]` is missing, or whose engine is not ready.
  void Add(WaitId id, Wait wait);

  /// Takes one out; nothing if it is not in.
  std::optional<Wait> Take(WaitId id);

  /// The engine has become ready: takes out those that wait for it.
  std::vector<Wait> TakeReady(const EngineKey& key);

  /// `room` was placed. `is_placed` tells of others. Takes out those that miss nothing any more.
  /// Each room of a wait is looked at once in all, however many calls of this there are.
  std::vector<Wait> TakePlaced(const EngineKey& key, RoomId room,
                               absl::FunctionRef<bool(RoomId)> is_placed);

  std::vector<Wait> TakeAll();

  /// Rooms of all waits, those that were placed meanwhile included.
  size_t rooms() const { return rooms_; }
  size_t size() const { return waits_.size(); }

 private:
  using Topic = std::pair<EngineKey, int64_t>;  // a room, or kReady
  static constexpr int64_t kReady = -1;

  static Topic TopicOf(const Wait& wait);
  void RemoveTopic(WaitId id, const Topic& topic);

  absl::flat_hash_map<WaitId, Wait> waits_;
  absl::flat_hash_map<Topic, std::vector<WaitId>> topics_;
  size_t rooms_ = 0;
};

}  // namespace pageferry::bootstrap
