#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/messages.h"

namespace pageferry::agent {

/// What is still to be said of rooms that ended before their peer was found: it may wait for them.
/// By the ticket of the search, which goes on until the room's deadline; the last attempt of a room
/// counts.
///
/// Thread-compatible. Pure.
class Farewells {
 public:
  void Add(int64_t ticket, Abort abort) {
    by_room_[abort.room.id] = ticket;
    by_ticket_[ticket] = std::move(abort);
  }

  /// What is to be said when this search ends.
  std::optional<Abort> Take(int64_t ticket) {
    const auto found = by_ticket_.find(ticket);
    if (found == by_ticket_.end()) return std::nullopt;
    Abort abort = std::move(found->second);
    by_ticket_.erase(found);
    by_room_.erase(abort.room.id);
    return abort;
  }

  /// A new attempt begins: nothing is to be said of the old one. The search that is not needed.
  std::optional<int64_t> Drop(RoomId room) {
    const auto found = by_room_.find(room);
    if (found == by_room_.end()) return std::nullopt;
    const int64_t ticket = found->second;
    by_ticket_.erase(ticket);
    by_room_.erase(found);
    return ticket;
  }

  int64_t size() const { return static_cast<int64_t>(by_ticket_.size()); }

 private:
  absl::flat_hash_map<int64_t, Abort> by_ticket_;
  absl::flat_hash_map<RoomId, int64_t> by_room_;
};

}  // namespace pageferry::agent
