#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "libs/common/ids.h"
#include "libs/common/lease_table.h"
#include "services/bootstrap/records.h"

namespace pageferry::bootstrap {

/// A room and the DP rank that holds it, 0 to 65,535.
struct Placement {
  RoomId room;
  int32_t dp_rank = 0;

  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Which DP rank of a prefill engine holds each room, until the placement expires.
///
/// Thread-compatible; pure: time is an argument and must not go back. Steps are O(log n) a room.
/// Takes at most 128 bytes a room (measured by its test) and gives them back when the last room has
/// gone; engines' names are kept once each, while they have rooms. A placement lives while `now` is
/// before its expiry.
class RoomDirectory {
 public:
  explicit RoomDirectory(size_t max_rooms);
  RoomDirectory(const RoomDirectory&) = delete;
  RoomDirectory& operator=(const RoomDirectory&) = delete;
  ~RoomDirectory() = default;

  /// Places all rooms until `now + ttl`; the last one to place a room wins. Returns how many were
  /// placed at another rank before.
  /// kResourceExhausted, LIMIT_REACHED: they do not all fit; none was placed. Retry later.
  absl::StatusOr<int64_t> Place(const EngineKey& key, absl::Span<const Placement> placements,
                                absl::Duration ttl, MonotonicTime now);

  /// Those of `rooms` that are placed, in their order.
  std::vector<Placement> Lookup(const EngineKey& key, absl::Span<const RoomId> rooms,
                                MonotonicTime now) const;

  /// Drops at most `max_count` placements whose time has come. True if there may be more.
  bool ExpireUpTo(MonotonicTime now, size_t max_count);
  /// When to call it next.
  MonotonicTime NextExpiry() const;

  /// Rooms held, with those that have expired and were not dropped yet.
  size_t size() const { return index_.size(); }

 private:
  struct Slot {
    int64_t room;
    uint32_t engine;
    uint16_t dp_rank;
  };
  struct Name {
    uint32_t engine;
    int64_t room;
  };
  /// Lets the index hold four bytes a room, and be searched by name.
  struct SlotHash {
    using is_transparent = void;
    const std::deque<Slot>* slots;
    size_t operator()(const Name& name) const { return absl::HashOf(name.engine, name.room); }
    size_t operator()(uint32_t slot) const {
      return absl::HashOf((*slots)[slot].engine, (*slots)[slot].room);
    }
  };
  struct SlotEqual {
    using is_transparent = void;
    const std::deque<Slot>* slots;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t slot, const Name& name) const {
      return (*slots)[slot].engine == name.engine && (*slots)[slot].room == name.room;
    }
    bool operator()(const Name& name, uint32_t slot) const { return (*this)(slot, name); }
  };
  struct Engine {
    EngineKey key;
    size_t rooms = 0;
  };
  using Index = absl::flat_hash_set<uint32_t, SlotHash, SlotEqual>;

  Index MakeIndex() const { return Index(0, SlotHash{&slots_}, SlotEqual{&slots_}); }
  size_t CountNew(const EngineKey& key, absl::Span<const Placement> placements) const;
  uint32_t Intern(const EngineKey& key);
  uint32_t AddSlot(const Slot& slot);
  void Drop(uint32_t slot);

  const size_t max_rooms_;
  std::deque<Slot> slots_;  // a deque grows without room to spare
  std::vector<uint32_t> free_slots_;
  Index index_;
  ExpiryHeap expiries_;
  absl::flat_hash_map<EngineKey, uint32_t> engine_ids_;
  std::vector<Engine> engines_;
  std::vector<uint32_t> free_engines_;
};

}  // namespace pageferry::bootstrap
