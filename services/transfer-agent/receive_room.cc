#include "services/transfer-agent/receive_room.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/page_runs.h"
#include "libs/common/status.h"

namespace pageferry::agent {
namespace {

absl::Status WithReason(const absl::Status& status) {
  if (ReasonOf(status) != Reason::kUnspecified) return status;
  return MakeError(status.code(), Reason::kTransport, status.message());
}

}  // namespace

absl::Status CheckReceive(const OpenReceive& receive, const ProfileSizes& own) {
  if (receive.room.attempt.value() < 1) {
    return InvalidField("room.attempt", absl::StrCat(receive.room.attempt.value()), "1 or more");
  }
  if (receive.prefill_engine.empty()) return InvalidField("prefill_engine_id", "", "not empty");
  if (receive.cached_prefix_pages < 0) {
    return InvalidField("cached_prefix_pages", absl::StrCat(receive.cached_prefix_pages),
                        "0 or more");
  }
  if (receive.checksum) return ChecksumUnsupported();
  PAGEFERRY_RETURN_IF_ERROR(CheckPageRuns(receive.runs, own.pages));
  PAGEFERRY_RETURN_IF_ERROR(CheckAuxSlot(receive.aux_slot, own));
  return CheckStates(receive.states, own);
}

void ReceiveRoom::Open(OpenReceive receive, MonotonicTime now) {
  key_ = receive.room;
  receive_ = std::move(receive);
  granted_pages_ = TotalPages(receive_.runs);
  opened_ = true;
  deadline_ = now + receive_.timeout;
  actions_.probe().RoomOpened(role_);
  TellEngine(now);
}

void ReceiveRoom::OnPeerFound(std::shared_ptr<const PeerLink> link, MonotonicTime now) {
  if (state_ != RoomState::kBootstrapping) return;
  if (!link->plan.ok()) {
    End({.own = link->plan.status(), .tell = absl::OkStatus()}, now);
    return;
  }
  link_ = std::move(link);
  granted_at_ = now;
  needs_abort_reply_ = link_->info.driver == transport::Driver::kSource;
  actions_.Send(link_->id, Grant{.room = key_,
                                 .runs = receive_.runs,
                                 .aux_slot = receive_.aux_slot,
                                 .states = receive_.states,
                                 .cached_prefix_pages = receive_.cached_prefix_pages,
                                 .timeout = deadline_ - now,
                                 .priority = receive_.priority,
                                 .capability = receive_.capability,
                                 .trace = receive_.trace,
                                 .checksum = receive_.checksum});
  SetState(RoomState::kWaitingForInput, now);
  TellEngine(now);
}

absl::Status ReceiveRoom::CheckOffer(const Offer& offer) const {
  if (last_offered_ || completed_.has_value()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder,
                     "an offer behind the last");
  }
  if (offer.first_granted_index != offered_pages_) {
    return Annotate(PageCountMismatch(granted_pages_, offered_pages_),
                    absl::StrCat("offer at ", offer.first_granted_index, " where ", offered_pages_,
                                 " was expected"));
  }
  PAGEFERRY_RETURN_IF_ERROR(CheckPageRuns(offer.runs, link_->sizes.pages));
  const int64_t sent = SaturatingAdd(offered_pages_, TotalPages(offer.runs));
  if (sent > granted_pages_ || (offer.last && sent < granted_pages_)) {
    return PageCountMismatch(granted_pages_, sent);
  }
  if (!offer.last) {
    if (offer.aux_slot == -1 && offer.states.empty()) return absl::OkStatus();
    return InvalidField("aux_slot", absl::StrCat(offer.aux_slot), "unset without last");
  }
  PAGEFERRY_RETURN_IF_ERROR(CheckAuxSlot(offer.aux_slot, link_->sizes));
  PAGEFERRY_RETURN_IF_ERROR(CheckStates(offer.states, link_->sizes));
  return CheckExtrasPair(*link_->plan, {offer.aux_slot, offer.states},
                         {receive_.aux_slot, receive_.states});
}

void ReceiveRoom::OnOffer(const Offer& offer, MonotonicTime now) {
  const bool expected = state_ == RoomState::kWaitingForInput || state_ == RoomState::kTransferring;
  if (!expected || !broken_.ok()) return;
  if (const absl::Status good = CheckOffer(offer); !good.ok()) {
    End(BrokenRule(good), now);
    return;
  }
  if (state_ == RoomState::kWaitingForInput) {
    SetState(RoomState::kTransferring, now);
    TellEngine(now);
  }
  last_offered_ = offer.last;
  if (const absl::Status started = StartMove(offer, now); !started.ok()) {
    End(BrokenRule(started), now);
    return;
  }
  SucceedIfAllIsThere(now);
}

absl::Status ReceiveRoom::StartMove(const Offer& offer, MonotonicTime now) {
  const PairPlan& plan = *link_->plan;
  const int64_t pages = TotalPages(offer.runs);
  PAGEFERRY_ASSIGN_OR_RETURN(const std::vector<PageRun> target,
                             SliceRuns(receive_.runs, offered_pages_, pages));
  PAGEFERRY_ASSIGN_OR_RETURN(std::vector<RunPair> runs, PairRuns(offer.runs, target));
  std::vector<transport::Step> steps = BuildSteps(plan, std::move(runs));
  Move move{.pages = pages, .bytes = own_->sizes.page_bytes * pages, .started = now};
  if (offer.last) {
    AppendExtraSteps(plan, {offer.aux_slot, offer.states}, {receive_.aux_slot, receive_.states},
                     steps);
    move.bytes = BytesOf(own_->sizes, pages, receive_.aux_slot, receive_.states);
  }
  offered_pages_ += pages;
  if (steps.empty()) return absl::OkStatus();
  const int64_t ticket = actions_.StartMove(serial_, link_->id,
                                            {.flow = static_cast<uint64_t>(serial_),
                                             .priority = receive_.priority,
                                             .steps = std::move(steps),
                                             .seal = offer.seal,
                                             .cancel = cancel_});
  moves_.emplace(ticket, move);
  return absl::OkStatus();
}

absl::Status ReceiveRoom::OnCompleted(const Completed& completed, MonotonicTime now) {
  if (terminal() || !broken_.ok()) return absl::OkStatus();
  if (completed_.has_value()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder,
                     "completed a second time");
  }
  completed_ = completed;
  if (!last_offered_) {
    End(BrokenRule(PageCountMismatch(granted_pages_, offered_pages_)), now);
    return absl::OkStatus();
  }
  SucceedIfAllIsThere(now);
  return absl::OkStatus();
}

bool ReceiveRoom::SucceedIfAllIsThere(MonotonicTime now) {
  if (terminal() || !broken_.ok() || !last_offered_ || !moves_.empty()) return false;
  if (!completed_.has_value()) return false;
  const ByteCount expected =
      BytesOf(own_->sizes, granted_pages_, receive_.aux_slot, receive_.states);
  if (pages_done_ != granted_pages_ || bytes_done_ != expected ||
      completed_->pages != pages_done_ || completed_->bytes != bytes_done_) {
    End(BrokenRule(Annotate(PageCountMismatch(granted_pages_, completed_->pages),
                            absl::StrCat("bytes in place ", bytes_done_.value(), ", completed ",
                                         completed_->bytes.value()))),
        now);
    return true;
  }
  SetState(RoomState::kSuccess, now);
  actions_.probe().RoomEnded(role_, Reason::kUnspecified, now - opened_at_);
  actions_.probe().GrantCompleted(link_->info.transport, now - granted_at_.value_or(now));
  Drain(now);
  TellEngine(now);
  actions_.Send(link_->id,
                Taken{.room = key_, .pages = pages_done_, .bytes = bytes_done_, .complete = true});
  return true;
}

void ReceiveRoom::OnMoveDone(int64_t ticket, const absl::Status& status, MonotonicTime now) {
  const auto found = moves_.find(ticket);
  if (found == moves_.end()) return;
  const Move move = found->second;
  moves_.erase(found);
  if (terminal()) {
    DrainIfQuiet(now);
    return;
  }
  if (!broken_.ok()) return;
  if (status.ok()) {
    pages_done_ += move.pages;
    bytes_done_ += move.bytes;
    actions_.probe().ChunkMoved(link_->info.transport, move.pages, move.bytes, now - move.started);
    if (SucceedIfAllIsThere(now)) return;
    actions_.Send(link_->id, Taken{.room = key_, .pages = pages_done_, .bytes = bytes_done_});
    return;
  }
  if (ReasonOf(status) != Reason::kSealBroken) {
    End(BrokenRule(WithReason(status)), now);
    return;
  }
  broken_ = status;
  broken_until_ = now + kSealGrace;
  cancel_->Cancel();
}

void ReceiveRoom::OnRefused(const absl::Status& error, MonotonicTime now) {
  if (state_ == RoomState::kWaitingForInput) End(EndedByPeer(error), now);
}

void ReceiveRoom::OnAbortReply(const AbortReply& reply, MonotonicTime now) {
  if (!reply.drained || state_ != RoomState::kFailed) return;
  needs_abort_reply_ = false;
  DrainIfQuiet(now);
}

void ReceiveRoom::DrainIfQuiet(MonotonicTime now) {
  if (!drained_ && moves_.empty() && !needs_abort_reply_) Drain(now);
}

void ReceiveRoom::End(const Ending& ending, MonotonicTime now) {
  if (terminal()) return;
  Fail(ending, now);
  cancel_->Cancel();
  if (link_ != nullptr && !ending.tell.ok()) {
    actions_.Send(link_->id, Abort{.room = key_, .error = ending.tell});
  }
  DrainIfQuiet(now);
}

MonotonicTime ReceiveRoom::NextTimer() const {
  return terminal() ? MonotonicTime::InfiniteFuture() : std::min(deadline_, broken_until_);
}

void ReceiveRoom::OnTimer(MonotonicTime now) {
  if (now >= broken_until_) {
    End(BrokenRule(broken_), now);
  } else if (now >= deadline_) {
    End(DeadlinePassed(state_), now);
  }
}

RoomGauges ReceiveRoom::Gauges() const {
  return {.live = !terminal(),
          .opened = true,
          .state = state_,
          .offers_open = static_cast<int64_t>(moves_.size()),
          .moves = static_cast<int64_t>(moves_.size())};
}

RoomView ReceiveRoom::View(MonotonicTime now) const {
  RoomView view = Room::View(now);
  // Known from the engine, also while no session to it is found: the room waits for just that.
  if (view.peer_engine.empty()) view.peer_engine = receive_.prefill_engine.value();
  view.pages_granted = granted_pages_;
  view.pages_offered = offered_pages_;
  return view;
}

std::string ReceiveRoom::WaitingFor() const {
  switch (state_) {
    case RoomState::kBootstrapping:
      return absl::StrCat("session with engine ", receive_.prefill_engine.value());
    case RoomState::kWaitingForInput:
      return "first offer of the prefill side";
    case RoomState::kTransferring:
      if (!broken_.ok()) return "reason of the broken seal";
      if (!moves_.empty()) return "moves in flight";
      return last_offered_ ? "totals of the prefill side" : "next offer of the prefill side";
    case RoomState::kFailed:
      return drained_ ? "" : "moves in flight to stop";
    case RoomState::kSuccess:
      break;
  }
  return "";
}

}  // namespace pageferry::agent
