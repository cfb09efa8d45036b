#include "services/transfer-agent/drainer.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace pageferry::agent {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kAbortGrace = absl::Seconds(3);

}  // namespace

void Drainer::Start(absl::Duration timeout, bool deregister, Done done) {
  const MonotonicTime deadline = loop_.Now() + timeout;
  drains_.push_back({.deadline = deadline,
                     .gives_up = deadline + kAbortGrace,
                     .deregister = deregister,
                     .rooms = core_->LiveRooms(),
                     .done = std::move(done)});
  host_.StartDrain();
  Look();
}

int64_t Drainer::AbortAll() {
  int64_t aborted = 0;
  std::optional<RoomKey> after;
  while (true) {
    const std::vector<RoomView> rooms = core_->ListRooms(after, 1000, loop_.Now());
    if (rooms.empty()) return aborted;
    after = rooms.back().room;
    for (const RoomView& room : rooms) {
      if (IsTerminal(room.state)) continue;
      if (core_->AbortRoom(room.room, "the agent is draining", loop_.Now()).ok()) ++aborted;
    }
  }
}

void Drainer::Look() {
  const MonotonicTime now = loop_.Now();
  for (auto it = drains_.begin(); it != drains_.end();) {
    if (core_->LiveRooms() > 0 && now < it->gives_up) {
      if (now >= it->deadline && !it->aborting) {
        it->aborting = true;
        it->aborted = AbortAll();
      }
      ++it;
      continue;
    }
    Drain ended = std::move(*it);
    it = drains_.erase(it);
    const Result result{.finished = std::max<int64_t>(ended.rooms - ended.aborted, 0),
                        .aborted = ended.aborted};
    if (!ended.deregister) {
      ended.done(result);
      continue;
    }
    host_.Deregister(absl::Seconds(2),
                     [done = std::move(ended.done), result]() mutable { done(result); });
  }
  if (!drains_.empty()) timer_.Set(now + kPoll, [this] { Look(); });
}

}  // namespace pageferry::agent
