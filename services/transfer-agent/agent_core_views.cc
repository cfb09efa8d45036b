#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/agent_core_impl.h"

namespace pageferry::agent {
namespace {

RoomView ViewOf(const Tombstone& tombstone, MonotonicTime now) {
  RoomView view = *tombstone.view;
  view.waiting_time = now - tombstone.ended;
  view.age += now - tombstone.ended;
  return view;
}

}  // namespace

std::vector<RoomView> AgentCore::Impl::ListRooms(std::optional<RoomKey> after, int64_t limit,
                                                 MonotonicTime now) const {
  std::vector<RoomView> views;
  // Each table in order and at most `limit` of it: the first `limit` of all are among them.
  const auto add = [&](const auto& map, const auto& view) {
    int64_t added = 0;
    auto it = after.has_value() ? map.upper_bound(*after) : map.begin();
    for (; it != map.end() && added < limit; ++it) {
      if (std::optional<RoomView> found = view(it->second); found.has_value()) {
        views.push_back(*std::move(found));
        ++added;
      }
    }
  };
  const auto of_room = [now](const auto& room) { return std::optional(room->View(now)); };
  add(sends_.rooms(), of_room);
  add(receives_.rooms(), of_room);
  add(tombstones_.map(), [now](const Tombstone& tombstone) {
    return tombstone.view == nullptr ? std::nullopt : std::optional(ViewOf(tombstone, now));
  });
  std::ranges::sort(views, {}, &RoomView::room);
  if (std::ssize(views) > limit) views.resize(static_cast<size_t>(std::max<int64_t>(limit, 0)));
  return views;
}

absl::StatusOr<RoomView> AgentCore::Impl::GetRoom(RoomKey room, MonotonicTime now) const {
  const bool newest = room.attempt.value() == 0;
  std::optional<RoomView> best;
  const auto consider = [&](const RoomKey& key, auto&& view) {
    if (!newest && key != room) return;
    if (!best.has_value() || key.attempt >= best->room.attempt) best = view();
  };
  for (const auto& [key, tombstone] : tombstones_.OfRoom(room.id)) {
    if (tombstone->view == nullptr) continue;
    consider(key, [&] { return ViewOf(*tombstone, now); });
  }
  for (const SendRoom* live : sends_.AllOf(room.id)) {
    consider(live->key(), [&] { return live->View(now); });
  }
  for (const ReceiveRoom* live : receives_.AllOf(room.id)) {
    consider(live->key(), [&] { return live->View(now); });
  }
  if (!best.has_value()) return RoomNotFound(room);
  return *std::move(best);
}

absl::Status AgentCore::Impl::AbortRoom(RoomKey room, const std::string& detail,
                                        MonotonicTime now) {
  const std::vector<Room*> live = LiveOf(room);
  if (live.empty()) return RoomNotFound(room);
  for (Room* found : live) EndAndSettle(*found, AbortedByOperator(detail), now);
  return absl::OkStatus();
}

std::map<std::string, int64_t> AgentCore::Impl::Ledger() const {
  return {{"rooms_prefill", sends_.size()},
          {"rooms_decode", receives_.size()},
          {"grants_held", totals_.grants_held},
          {"offers_open", totals_.offers_open},
          {"moves_running", static_cast<int64_t>(moves_.size())},
          {"chunks_held", totals_.chunks_held},
          {"seals", totals_.seals},
          {"tickets", static_cast<int64_t>(finds_.size()) + farewells_.size()},
          {"tombstones", tombstones_.size()}};
}

std::map<std::pair<Role, RoomState>, int64_t> AgentCore::Impl::RoomsByState() const {
  std::map<std::pair<Role, RoomState>, int64_t> rooms;
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    for (const RoomState state :
         {RoomState::kBootstrapping, RoomState::kWaitingForInput, RoomState::kTransferring}) {
      const auto found = by_state_.find({role, state});
      rooms[{role, state}] = found == by_state_.end() ? 0 : found->second;
    }
  }
  return rooms;
}

int64_t AgentCore::Impl::RoomsOfPeer(PeerId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : static_cast<int64_t>(found->second.rooms.size());
}

}  // namespace pageferry::agent
