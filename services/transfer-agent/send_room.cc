#include "services/transfer-agent/send_room.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/page_runs.h"
#include "libs/common/status.h"

namespace pageferry::agent {
namespace {

bool EqualInConstantTime(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace

bool SendRoom::SendCapabilityIs(const std::string& capability) const {
  return EqualInConstantTime(capability_, capability);
}

bool SendRoom::GrantCapabilityIs(const std::string& capability) const {
  return granted_ && EqualInConstantTime(grant_.capability, capability);
}

void SendRoom::Open(const OpenSend& send, MonotonicTime now) {
  opened_ = true;
  opened_at_ = now;
  dummy_send_ = send.dummy;
  capability_ = send.capability;
  deadline_ = std::min(grant_deadline_, now + send.timeout);  // an orphan's bound is over
  actions_.probe().RoomOpened(role_);
  if (granted() || dummy_send_) {
    BeginWaiting(now);
  } else {
    TellEngine(now);
  }
}

void SendRoom::TakeGrant(std::shared_ptr<const PeerLink> link, Sequence sequence, Grant grant,
                         MonotonicTime now) {
  link_ = std::move(link);
  key_ = grant.room;
  grant_sequence_ = sequence;
  granted_pages_ = TotalPages(grant.runs);
  grant_deadline_ = now + grant.timeout;
  deadline_ = std::min(deadline_, grant_deadline_);
  grant_ = std::move(grant);
  grant_.runs = std::vector<PageRun>();  // up to 4 MiB; only the target needs to know where
  granted_ = true;
}

void SendRoom::Hold(std::shared_ptr<const PeerLink> link, Sequence sequence, Grant grant,
                    absl::Duration ttl, MonotonicTime now) {
  TakeGrant(std::move(link), sequence, std::move(grant), now);
  deadline_ = std::min(deadline_, now + ttl);
}

void SendRoom::OnGrant(std::shared_ptr<const PeerLink> link, Sequence sequence, Grant grant,
                       MonotonicTime now) {
  TakeGrant(std::move(link), sequence, std::move(grant), now);
  BeginWaiting(now);
}

void SendRoom::BeginWaiting(MonotonicTime now) {
  if (granted() && dummy_send_ && !grant_.dummy) {
    End(BrokenRule(PageCountMismatch(granted_pages(), 0)), now);
    return;
  }
  const bool already = state_ == RoomState::kWaitingForInput;  // a dummy, now granted
  if (!already) SetState(RoomState::kWaitingForInput, now);
  if (!already) TellEngine(now);
  if (granted()) {
    actions_.Tell(PrefixKnown{.room = key_,
                              .cached_prefix_pages = grant_.cached_prefix_pages,
                              .granted_pages = granted_pages()});
  }
  std::deque<SendChunk> held = std::move(held_);
  held_.clear();
  for (const SendChunk& chunk : held) {
    if (terminal()) return;
    HandleChunk(chunk, now);
  }
}

absl::Status SendRoom::CheckChunk(const SendChunk& chunk) {
  if (last_seen_) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder,
                     "a chunk behind the last");
  }
  if (chunk.first_position < 0) {
    return InvalidField("first_position", absl::StrCat(chunk.first_position), "0 or more");
  }
  if (next_position_.has_value() && chunk.first_position != *next_position_) {
    return Annotate(PageCountMismatch(granted() ? granted_pages() : -1, chunk.first_position),
                    absl::StrCat("chunk at ", chunk.first_position, " where ", *next_position_,
                                 " was expected"));
  }
  if (!chunk.last && chunk.aux_slot != -1) {
    return InvalidField("aux_slot", absl::StrCat(chunk.aux_slot), "unset without last");
  }
  if (!chunk.last && !chunk.states.empty()) {
    return InvalidField("states", absl::StrCat(chunk.states.size()), "none without last");
  }
  PAGEFERRY_RETURN_IF_ERROR(CheckAuxSlot(chunk.aux_slot, own_->sizes));
  PAGEFERRY_RETURN_IF_ERROR(CheckStates(chunk.states, own_->sizes));
  return named_.Add(chunk.runs, own_->sizes.pages);
}

void SendRoom::OnChunk(SendChunk chunk, MonotonicTime now) {
  if (terminal() || !opened_) return;
  if (const absl::Status good = CheckChunk(chunk); !good.ok()) {
    End(BrokenRule(good), now);
    return;
  }
  next_position_ = SaturatingAdd(chunk.first_position, TotalPages(chunk.runs));
  last_seen_ = chunk.last;
  if (state_ != RoomState::kBootstrapping) {
    HandleChunk(chunk, now);
    return;
  }
  held_.push_back(std::move(chunk));
  const auto held = static_cast<int64_t>(held_.size());
  if (held > max_held_chunks_) End(BrokenRule(LimitReached("held_chunks", held)), now);
}

absl::Status SendRoom::CheckAgainstGrant(const SendChunk& chunk) const {
  const int64_t prefix = grant_.cached_prefix_pages;
  if (!first_handled_ && chunk.first_position > prefix) {
    return Annotate(PageCountMismatch(granted_pages(), -1),
                    absl::StrCat("first chunk at ", chunk.first_position,
                                 ", behind the cached prefix of ", prefix));
  }
  const int64_t end = SaturatingAdd(chunk.first_position, TotalPages(chunk.runs));
  const int64_t sent = std::max<int64_t>(0, SaturatingSubtract(end, prefix));
  if (sent > granted_pages() || (chunk.last && sent < granted_pages())) {
    return PageCountMismatch(granted_pages(), sent);
  }
  if (!chunk.last) return absl::OkStatus();
  return CheckExtrasPair(*link_->plan, {chunk.aux_slot, chunk.states},
                         {grant_.aux_slot, grant_.states});
}

void SendRoom::HandleChunk(const SendChunk& chunk, MonotonicTime now) {
  if (dummy()) {
    if (!chunk.last) return;
    if (granted()) actions_.Send(link_->id, Completed{.room = key_});
    Succeed(now);
    return;
  }
  if (const absl::Status good = CheckAgainstGrant(chunk); !good.ok()) {
    End(BrokenRule(good), now);
    return;
  }
  first_handled_ = true;
  const int64_t count = TotalPages(chunk.runs);
  const int64_t skipped = std::clamp<int64_t>(
      SaturatingSubtract(grant_.cached_prefix_pages, chunk.first_position), 0, count);
  if (count > skipped || chunk.last) OfferChunk(chunk, skipped, now);
}

// Where the source drives (Driver::kSource), moves would start here instead of offers; core refuses
// grants of such sessions until that comes.
void SendRoom::OfferChunk(const SendChunk& chunk, int64_t skipped, MonotonicTime now) {
  if (!seal_.has_value()) {
    absl::StatusOr<transport::SealRef> seal = actions_.MakeSeal();
    if (!seal.ok()) {
      End(BrokenRule(seal.status()), now);
      return;
    }
    seal_ = *seal;
  }
  if (state_ == RoomState::kWaitingForInput) {
    SetState(RoomState::kTransferring, now);
    TellEngine(now);
  }
  const int64_t count = TotalPages(chunk.runs) - skipped;
  absl::StatusOr<std::vector<PageRun>> runs = SliceRuns(chunk.runs, skipped, count);
  if (!runs.ok()) {
    End(BrokenRule(runs.status()), now);
    return;
  }
  actions_.Send(link_->id, Offer{.room = key_,
                                 .runs = *std::move(runs),
                                 .first_granted_index = offered_pages_,
                                 .last = chunk.last,
                                 .aux_slot = chunk.aux_slot,
                                 .states = chunk.states,
                                 .seal = *seal_});
  ++offers_;
  offered_pages_ += count;
  offered_bytes_ += BytesOf(own_->sizes, count, chunk.aux_slot, chunk.states);
  if (!chunk.last) return;
  all_offered_ = true;
  actions_.Send(link_->id,
                Completed{.room = key_, .pages = offered_pages_, .bytes = offered_bytes_});
}

absl::Status SendRoom::OnTaken(const Taken& taken, MonotonicTime now) {
  if (state_ != RoomState::kTransferring) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder,
                     "taken where nothing was offered");
  }
  if (taken.complete) {
    if (!all_offered_ || taken.pages != offered_pages_ || taken.bytes != offered_bytes_) {
      End(BrokenRule(Annotate(
              PageCountMismatch(taken.pages, offered_pages_),
              absl::StrCat("bytes taken ", taken.bytes.value(), " of ", offered_bytes_.value()))),
          now);
      return absl::OkStatus();
    }
    pages_done_ = taken.pages;
    bytes_done_ = taken.bytes;
    Succeed(now);
    return absl::OkStatus();
  }
  if (taken.pages < pages_done_ || taken.pages > offered_pages_ || taken.bytes < bytes_done_ ||
      taken.bytes > offered_bytes_) {
    return InvalidField("taken.pages", absl::StrCat(taken.pages),
                        absl::StrCat(pages_done_, " to ", offered_pages_));
  }
  pages_done_ = taken.pages;
  bytes_done_ = taken.bytes;
  return absl::OkStatus();
}

void SendRoom::Release() {
  if (seal_.has_value()) actions_.BreakSeal(*seal_);
  seal_.reset();
  held_.clear();
  named_.Clear();
}

void SendRoom::Succeed(MonotonicTime now) {
  Release();
  SetState(RoomState::kSuccess, now);
  actions_.probe().RoomEnded(role_, Reason::kUnspecified, now - opened_at_);
  Drain(now);
  TellEngine(now);
}

void SendRoom::End(const Ending& ending, MonotonicTime now) {
  if (terminal()) return;
  Fail(ending, now);
  // The reason travels before the seal breaks, so that decode seldom sees the break alone.
  if (link_ != nullptr && !ending.tell.ok()) {
    actions_.Send(link_->id, Failed{.room = key_, .error = ending.tell});
  }
  Release();
  Drain(now);
}

MonotonicTime SendRoom::NextTimer() const {
  return terminal() ? MonotonicTime::InfiniteFuture() : deadline_;
}

RoomGauges SendRoom::Gauges() const {
  return {.live = !terminal(),
          .opened = opened_,
          .state = state_,
          .grants_held = !opened_ && !terminal() ? 1 : 0,
          .chunks_held = static_cast<int64_t>(held_.size()),
          .offers_open = terminal() ? 0 : offers_,
          .seals = seal_.has_value() ? 1 : 0};
}

RoomView SendRoom::View(MonotonicTime now) const {
  RoomView view = Room::View(now);
  if (granted()) view.pages_granted = granted_pages();
  view.pages_offered = offered_pages_;
  return view;
}

std::string SendRoom::WaitingFor() const {
  switch (state_) {
    case RoomState::kBootstrapping:
      return opened_ ? "grant of the decode side" : "open_send of the engine";
    case RoomState::kWaitingForInput:
      return "chunks of the engine";
    case RoomState::kTransferring:
      return all_offered_ ? "decode side to take the pages" : "chunks of the engine";
    case RoomState::kFailed:
    case RoomState::kSuccess:
      break;
  }
  return "";
}

}  // namespace pageferry::agent
