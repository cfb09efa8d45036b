#include "services/transfer-agent/room.h"

#include <optional>

#include "absl/status/status.h"
#include "libs/common/error.h"
#include "libs/common/ids.h"

namespace pageferry::agent {

void Room::SetState(RoomState state, MonotonicTime now) {
  state_ = state;
  state_since_ = now;
}

void Room::TellEngine(MonotonicTime now) {
  if (!opened_) return;
  RoomEvent event{.room = key_,
                  .state = state_,
                  .drained = drained_,
                  .error = error_,
                  .pages = pages_done_,
                  .bytes = bytes_done_,
                  .elapsed = now - opened_at_};
  if (link_ != nullptr) event.transport = link_->info.transport;
  if (const auto granted = granted_at(); granted.has_value()) event.since_grant = now - *granted;
  actions_.Tell(std::move(event));
}

void Room::Fail(const Ending& ending, MonotonicTime now) {
  error_ = ending.own;
  tell_ = ending.tell;
  SetState(RoomState::kFailed, now);
  if (opened_) actions_.probe().RoomEnded(role_, ReasonOf(error_), now - opened_at_);
  TellEngine(now);
}

void Room::Drain(MonotonicTime now) {
  drained_ = true;
  if (!opened_) return;
  actions_.probe().RoomDrained(role_, now - state_since_);
  if (state_ == RoomState::kFailed) TellEngine(now);
}

RoomView Room::View(MonotonicTime now) const {
  RoomView view{.room = key_,
                .role = role_,
                .state = state_,
                .drained = drained_,
                .waiting_for = WaitingFor(),
                .waiting_time = now - state_since_,
                .age = now - opened_at_,
                .pages_done = pages_done_,
                .bytes_done = bytes_done_,
                .error = error_};
  if (!terminal()) view.time_left = deadline_ - now;
  if (link_ != nullptr) {
    view.peer = link_->info.agent;
    view.peer_engine = link_->info.engine.engine_id.value();
    view.transport = link_->info.transport;
  }
  return view;
}

}  // namespace pageferry::agent
