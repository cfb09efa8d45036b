#include "services/bootstrap/room_directory.h"

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::bootstrap {

RoomDirectory::RoomDirectory(size_t max_rooms) : max_rooms_(max_rooms), index_(MakeIndex()) {}

absl::StatusOr<int64_t> RoomDirectory::Place(const EngineKey& key,
                                             absl::Span<const Placement> placements,
                                             absl::Duration ttl, MonotonicTime now) {
  if (index_.size() + placements.size() > max_rooms_) {
    ExpireUpTo(now, placements.size());
    if (index_.size() + CountNew(key, placements) > max_rooms_) {
      return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                       absl::StrCat("the directory is full: ", max_rooms_, " rooms"),
                       {{"limit", "max_rooms"}, {"value", absl::StrCat(max_rooms_)}});
    }
  }
  if (placements.empty()) return 0;
  const uint32_t engine = Intern(key);
  const MonotonicTime expiry = now + ttl;
  int64_t moved = 0;
  for (const Placement& placement : placements) {
    const auto dp_rank = static_cast<uint16_t>(placement.dp_rank);
    const auto found = index_.find(Name{engine, placement.room.value()});
    if (found == index_.end()) {
      const uint32_t slot = AddSlot({placement.room.value(), engine, dp_rank});
      index_.insert(slot);
      ++engines_[engine].rooms;
      expiries_.Set(slot, expiry);
      continue;
    }
    Slot& slot = slots_[*found];
    if (slot.dp_rank != dp_rank && expiries_.expiry(*found) > now) ++moved;
    slot.dp_rank = dp_rank;
    expiries_.Set(*found, expiry);
  }
  return moved;
}

size_t RoomDirectory::CountNew(const EngineKey& key, absl::Span<const Placement> placements) const {
  const auto engine = engine_ids_.find(key);
  absl::flat_hash_set<RoomId> fresh;
  for (const Placement& placement : placements) {
    if (engine == engine_ids_.end() ||
        !index_.contains(Name{engine->second, placement.room.value()})) {
      fresh.insert(placement.room);
    }
  }
  return fresh.size();
}

std::vector<Placement> RoomDirectory::Lookup(const EngineKey& key, absl::Span<const RoomId> rooms,
                                             MonotonicTime now) const {
  std::vector<Placement> placements;
  const auto engine = engine_ids_.find(key);
  if (engine == engine_ids_.end()) return placements;
  for (const RoomId room : rooms) {
    const auto found = index_.find(Name{engine->second, room.value()});
    if (found == index_.end() || expiries_.expiry(*found) <= now) continue;
    placements.push_back({.room = room, .dp_rank = slots_[*found].dp_rank});
  }
  return placements;
}

bool RoomDirectory::ExpireUpTo(MonotonicTime now, size_t max_count) {
  for (size_t done = 0; done < max_count; ++done) {
    if (expiries_.empty() || expiries_.top_expiry() > now) return false;
    Drop(expiries_.top());
  }
  return true;
}

MonotonicTime RoomDirectory::NextExpiry() const {
  return expiries_.empty() ? MonotonicTime::InfiniteFuture() : expiries_.top_expiry();
}

uint32_t RoomDirectory::Intern(const EngineKey& key) {
  if (const auto found = engine_ids_.find(key); found != engine_ids_.end()) return found->second;
  auto engine = static_cast<uint32_t>(engines_.size());
  if (free_engines_.empty()) {
    engines_.emplace_back();
  } else {
    engine = free_engines_.back();
    free_engines_.pop_back();
  }
  engines_[engine].key = key;
  engine_ids_.emplace(key, engine);
  return engine;
}

uint32_t RoomDirectory::AddSlot(const Slot& slot) {
  if (free_slots_.empty()) {
    slots_.push_back(slot);
    return static_cast<uint32_t>(slots_.size() - 1);
  }
  const uint32_t number = free_slots_.back();
  free_slots_.pop_back();
  slots_[number] = slot;
  return number;
}

void RoomDirectory::Drop(uint32_t slot) {
  const uint32_t engine = slots_[slot].engine;
  expiries_.Remove(slot);
  index_.erase(index_.find(slot));
  free_slots_.push_back(slot);
  if (--engines_[engine].rooms == 0) {
    engine_ids_.erase(engines_[engine].key);
    engines_[engine] = {};
    free_engines_.push_back(engine);
  }
  if (!index_.empty()) return;
  index_ = MakeIndex();
  slots_.clear();
  slots_.shrink_to_fit();
  free_slots_ = {};
  expiries_ = {};
}

}  // namespace pageferry::bootstrap
