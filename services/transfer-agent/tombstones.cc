#include "services/transfer-agent/tombstones.h"

#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "libs/common/ids.h"
#include "services/transfer-agent/room_table.h"

namespace pageferry::agent {

void Tombstones::Add(const RoomKey& key, Tombstone tombstone, MonotonicTime now) {
  tombstone.number = ++last_number_;
  order_.push_back({key, last_number_, now});
  map_.insert_or_assign(key, std::move(tombstone));
  // Void entries are bounded too: rooms that come and go under one key leave them.
  while (size() > max_count_ || std::ssize(order_) > 2 * max_count_) DropOldest();
}

Tombstone* Tombstones::Find(const RoomKey& key) {
  const auto found = map_.find(key);
  return found == map_.end() ? nullptr : &found->second;
}

const Tombstone* Tombstones::Find(const RoomKey& key) const {
  const auto found = map_.find(key);
  return found == map_.end() ? nullptr : &found->second;
}

std::optional<Attempt> Tombstones::HighestAttempt(RoomId id) const {
  const auto next = map_.upper_bound(LastKeyOf(id));
  if (next == map_.begin()) return std::nullopt;
  const RoomKey& last = std::prev(next)->first;
  if (last.id != id) return std::nullopt;
  return last.attempt;
}

std::vector<std::pair<RoomKey, const Tombstone*>> Tombstones::OfRoom(RoomId id) const {
  std::vector<std::pair<RoomKey, const Tombstone*>> all;
  const auto end = map_.upper_bound(LastKeyOf(id));
  for (auto it = map_.lower_bound(FirstKeyOf(id)); it != end; ++it) {
    all.emplace_back(it->first, &it->second);
  }
  return all;
}

void Tombstones::Rename(const RoomKey& from, const RoomKey& to, MonotonicTime now) {
  const auto found = map_.find(from);
  if (found == map_.end()) return;
  Tombstone tombstone = std::move(found->second);
  map_.erase(found);
  if (tombstone.view != nullptr) tombstone.view->room = to;
  Add(to, std::move(tombstone), now);
}

void Tombstones::Remove(const RoomKey& key) { map_.erase(key); }

void Tombstones::Close(const RoomKey& key) {
  const RoomKey last = key.attempt.value() == 0 ? LastKeyOf(key.id) : key;
  const auto end = map_.upper_bound(last);
  for (auto it = map_.lower_bound(key); it != end; ++it) it->second.view.reset();
}

void Tombstones::DropOldest() {
  const Order oldest = order_.front();
  order_.pop_front();
  const auto found = map_.find(oldest.key);
  if (found != map_.end() && found->second.number == oldest.number) map_.erase(found);
}

void Tombstones::Expire(MonotonicTime now, int64_t max_steps) {
  for (; max_steps > 0 && NextExpiry() <= now && !order_.empty(); --max_steps) DropOldest();
}

MonotonicTime Tombstones::NextExpiry() const {
  return order_.empty() ? MonotonicTime::InfiniteFuture() : order_.front().added + ttl_;
}

}  // namespace pageferry::agent
