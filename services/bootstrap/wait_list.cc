#include "services/bootstrap/wait_list.h"

#include <algorithm>

namespace pageferry::bootstrap {

WaitList::Topic WaitList::TopicOf(const Wait& wait) {
  return {wait.key, wait.rooms.empty() ? kReady : wait.rooms[wait.next_room].value()};
}

void WaitList::Add(WaitId id, Wait wait) {
  rooms_ += wait.rooms.size();
  topics_[TopicOf(wait)].push_back(id);
  waits_.insert_or_assign(id, std::move(wait));
}

void WaitList::RemoveTopic(WaitId id, const Topic& topic) {
  const auto entry = topics_.find(topic);
  if (entry == topics_.end()) return;
  std::erase(entry->second, id);
  if (entry->second.empty()) topics_.erase(entry);
}

std::optional<WaitList::Wait> WaitList::Take(WaitId id) {
  const auto found = waits_.find(id);
  if (found == waits_.end()) return std::nullopt;
  Wait wait = std::move(found->second);
  waits_.erase(found);
  RemoveTopic(id, TopicOf(wait));
  rooms_ -= wait.rooms.size();
  return wait;
}

std::vector<WaitList::Wait> WaitList::TakeReady(const EngineKey& key) {
  std::vector<Wait> taken;
  const auto topic = topics_.find(Topic(key, kReady));
  if (topic == topics_.end()) return taken;
  for (const WaitId id : std::vector<WaitId>(topic->second)) taken.push_back(*Take(id));
  return taken;
}

std::vector<WaitList::Wait> WaitList::TakePlaced(const EngineKey& key, RoomId room,
                                                 absl::FunctionRef<bool(RoomId)> is_placed) {
  std::vector<Wait> taken;
  const auto topic = topics_.find(Topic(key, room.value()));
  if (topic == topics_.end()) return taken;
  const std::vector<WaitId> ids = std::move(topic->second);
  topics_.erase(topic);
  for (const WaitId id : ids) {
    Wait& wait = waits_.at(id);
    do {
      ++wait.next_room;
    } while (wait.next_room < wait.rooms.size() && is_placed(wait.rooms[wait.next_room]));
    if (wait.next_room < wait.rooms.size()) {
      topics_[TopicOf(wait)].push_back(id);
      continue;
    }
    rooms_ -= wait.rooms.size();
    taken.push_back(std::move(wait));
    waits_.erase(id);
  }
  return taken;
}

std::vector<WaitList::Wait> WaitList::TakeAll() {
  std::vector<Wait> taken;
  for (auto& [id, wait] : waits_) taken.push_back(std::move(wait));
  waits_.clear();
  topics_.clear();
  rooms_ = 0;
  return taken;
}

}  // namespace pageferry::bootstrap
