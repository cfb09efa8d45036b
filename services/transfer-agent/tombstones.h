#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/messages.h"

namespace pageferry::agent {

/// What is kept of a room that is over.
struct Tombstone {
  /// For operators; null once the engine has closed the room.
  std::unique_ptr<RoomView> view;
  MonotonicTime ended;
  /// The answer to a grant that comes after the room failed; OK once a grant has come.
  absl::Status grant_answer;
  /// Kept by Tombstones.
  int64_t number = 0;
};

/// Ended rooms by (id, attempt), so that late frames are harmless and none comes back.
///
/// Thread-compatible. Pure. Bounded in number (the oldest go first) and in time. O(log n).
class Tombstones {
 public:
  using Map = absl::btree_map<RoomKey, Tombstone>;

  Tombstones(int64_t max_count, absl::Duration ttl) : max_count_(max_count), ttl_(ttl) {}

  /// Replaces one of the same key.
  void Add(const RoomKey& key, Tombstone tombstone, MonotonicTime now);
  /// Null if there is none. Good until the next call that changes the table.
  Tombstone* Find(const RoomKey& key);
  const Tombstone* Find(const RoomKey& key) const;
  /// The highest attempt of `id` that has ended; nothing where none is known.
  std::optional<Attempt> HighestAttempt(RoomId id) const;
  /// All of `id`, the lowest attempt first. Good until the next call that changes the table.
  std::vector<std::pair<RoomKey, const Tombstone*>> OfRoom(RoomId id) const;
  /// Gives attempt 0 the attempt of the grant that it answered.
  void Rename(const RoomKey& from, const RoomKey& to, MonotonicTime now);
  void Remove(const RoomKey& key);
  /// Hides `key` (attempt 0: all attempts) from operators.
  void Close(const RoomKey& key);

  /// Forgets what is older than the ttl, at most `max_steps` of it.
  void Expire(MonotonicTime now, int64_t max_steps);
  /// When Expire has something to do; InfiniteFuture when nothing is kept.
  MonotonicTime NextExpiry() const;

  const Map& map() const { return map_; }
  int64_t size() const { return static_cast<int64_t>(map_.size()); }

 private:
  struct Order {
    RoomKey key;
    int64_t number = 0;
    MonotonicTime added;
  };

  void DropOldest();

  const int64_t max_count_;
  const absl::Duration ttl_;
  Map map_;
  std::deque<Order> order_;  // oldest first; void where the tombstone has another number
  int64_t last_number_ = 0;
};

}  // namespace pageferry::agent
