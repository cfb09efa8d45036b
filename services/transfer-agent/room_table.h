#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/messages.h"

namespace pageferry::agent {

/// The first and last key that rooms of this id can have.
inline RoomKey FirstKeyOf(RoomId id) { return {id, Attempt(0)}; }
inline RoomKey LastKeyOf(RoomId id) { return {id, Attempt(std::numeric_limits<int64_t>::max())}; }

/// Rooms of one role that are not drained, by (id, attempt).
///
/// Thread-compatible. Owns its rooms; pointers to them stay good until Erase.
template <class R>
class RoomTable {
 public:
  using Map = absl::btree_map<RoomKey, std::unique_ptr<R>>;

  R& Add(std::unique_ptr<R> room, const RoomKey& key) {
    return *rooms_.insert_or_assign(key, std::move(room)).first->second;
  }
  /// Null if there is none.
  R* Find(const RoomKey& key) const {
    const auto found = rooms_.find(key);
    return found == rooms_.end() ? nullptr : found->second.get();
  }
  /// All attempts at a room, the lowest first.
  std::vector<R*> AllOf(RoomId id) const {
    std::vector<R*> all;
    const auto end = rooms_.upper_bound(LastKeyOf(id));
    for (auto it = rooms_.lower_bound(FirstKeyOf(id)); it != end; ++it) {
      all.push_back(it->second.get());
    }
    return all;
  }
  /// A room has taken another attempt. `to` must be free.
  void Rename(const RoomKey& from, const RoomKey& to) {
    const auto found = rooms_.find(from);
    std::unique_ptr<R> room = std::move(found->second);
    rooms_.erase(found);
    rooms_.emplace(to, std::move(room));
  }
  void Erase(const RoomKey& key) { rooms_.erase(key); }
  const Map& rooms() const { return rooms_; }
  int64_t size() const { return static_cast<int64_t>(rooms_.size()); }

 private:
  Map rooms_;
};

}  // namespace pageferry::agent
