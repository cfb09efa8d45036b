#include "services/transfer-agent/peer_session.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace pageferry::agent {
namespace {

absl::Status OutOfOrder(absl::string_view what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder, what);
}

absl::Status PeerLost(absl::string_view what) {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kPeerLost, what);
}

}  // namespace

PeerSession::PeerSession(Loop& loop, Host& host, PeerId id, bool dialled,
                         std::shared_ptr<PeerStream> stream, const PeerTimings& timings)
    : loop_(loop),
      host_(&host),
      id_(id),
      dialled_(dialled),
      timings_(timings),
      stream_(std::move(stream)),
      alive_(std::make_shared<bool>(true)),
      timer_(loop),
      heard_(loop.Now()),
      heartbeat_(loop.Now()) {
  stream_->SetHandler(this);
  ArmTimer();
}

PeerSession::~PeerSession() {
  *alive_ = false;
  stream_->SetHandler(nullptr);
  stream_->End(PeerLost("the session was dropped"), false);
}

void PeerSession::SendHello(const AgentRef& own, Hello hello) {
  own_ = own;
  SendOutput({.epoch = own.epoch, .content = std::move(hello)});
}

void PeerSession::SendHelloReply(const AgentRef& own, HelloReply reply) {
  own_ = own;
  SendOutput({.epoch = own.epoch, .content = std::move(reply)});
}

void PeerSession::Open(const AgentRef& own, const AgentRef& peer) {
  if (state_ != State::kOpening) return;
  state_ = State::kLive;
  own_ = own;
  peer_ = peer;
  heard_ = heartbeat_ = loop_.Now();
  ArmTimer();
}

void PeerSession::Send(PeerFrame frame) {
  if (state_ != State::kLive) return;
  const bool grant = std::holds_alternative<Grant>(frame);
  last_sent_ = last_sent_.Next();
  SendOutput({.sequence = last_sent_,
              .acknowledged = last_received_,
              .epoch = own_.epoch,
              .content = std::move(frame)});
  if (grant) BecomeBusy();
}

void PeerSession::SendOutput(PeerOutput output) {
  if (state_ == State::kClosed || stream_->Send(output)) return;
  Close(MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                  "the peer reads too slowly: its outbox is full", {{"limit", "outbox"}}),
        false);
}

void PeerSession::Close(const absl::Status& why, bool flush) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  timer_.Clear();
  stream_->End(why, flush);
  loop_.Post([this, alive = alive_, why] {
    if (*alive) host_->OnClosed(*this, why);
  });
}

void PeerSession::OnStreamEnded(const absl::Status& why) {
  // The reason that the other side gave goes on to the rooms; without one the peer is lost.
  Close(ReasonOf(why) != Reason::kUnspecified
            ? why
            : PeerLost(absl::StrCat("the stream to the peer ended: ",
                                    why.ok() ? "closed by the peer" : why.ToString())),
        false);
}

void PeerSession::OnInput(PeerInput input) {
  if (state_ == State::kClosed) return;
  heard_ = loop_.Now();
  if (state_ == State::kOpening) {
    OnOpening(std::move(input));
    return;
  }
  OnLive(std::move(input));
  if (state_ == State::kLive) stream_->ReadNext();
}

void PeerSession::OnOpening(PeerInput input) {
  if (auto* const hello = std::get_if<Hello>(&input.content); hello && !dialled_ && !hello_seen_) {
    hello_seen_ = true;
    return host_->OnHello(*this, std::move(*hello));
  }
  if (auto* const reply = std::get_if<HelloReply>(&input.content);
      reply && dialled_ && !hello_seen_) {
    hello_seen_ = true;
    return host_->OnHelloReply(*this, std::move(*reply));
  }
  if (const auto* const bad = std::get_if<BadFrame>(&input.content); bad && !hello_seen_) {
    return Close(bad->error);
  }
  Close(OutOfOrder(dialled_ ? "a frame before the answer to Hello" : "a frame before Hello"));
}

void PeerSession::OnLive(PeerInput input) {
  // These are never sent again, so they have no number, and only this direction's are known.
  if (const auto* const beat = std::get_if<Heartbeat>(&input.content)) {
    if (input.epoch != peer_.epoch) return;
    return SendOutput({.acknowledged = last_received_,
                       .epoch = own_.epoch,
                       .content = HeartbeatReply{.nonce = beat->nonce}});
  }
  if (std::holds_alternative<HeartbeatReply>(input.content)) return;
  if (std::holds_alternative<Hello>(input.content) ||
      std::holds_alternative<HelloReply>(input.content)) {
    return Refuse(input.sequence, {}, OutOfOrder("the session is open already"));
  }
  if (input.epoch != peer_.epoch) {
    return Refuse(input.sequence, {},
                  MakeError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                            "the frame names another epoch than Hello did",
                            {{"have", absl::StrCat(peer_.epoch.value())},
                             {"got", absl::StrCat(input.epoch.value())}}));
  }
  if (input.sequence <= last_received_) {
    return Refuse(input.sequence, {}, OutOfOrder("a frame of this sequence came before"));
  }
  if (input.sequence != last_received_.Next()) {
    return Close(OutOfOrder(
        absl::StrCat("frame ", input.sequence.value(), " follows frame ", last_received_.value())));
  }
  last_received_ = input.sequence;
  if (const auto* const bad = std::get_if<BadFrame>(&input.content)) {
    return Refuse(input.sequence, bad->room, bad->error);
  }
  auto* const frame = std::get_if<PeerFrame>(&input.content);
  if (frame == nullptr) return;
  if (std::holds_alternative<GoAway>(*frame)) going_away_ = true;
  const bool grant = std::holds_alternative<Grant>(*frame);
  host_->OnFrame(*this, input.sequence, std::move(*frame));
  if (grant) BecomeBusy();
}

void PeerSession::Refuse(Sequence sequence, const RoomKey& room, const absl::Status& error) {
  host_->OnRefused(*this, ReasonOf(error));
  Send(Refused{.sequence = sequence, .room = room, .error = error});
}

void PeerSession::BecomeBusy() {
  if (busy_ || state_ != State::kLive) return;
  busy_ = true;
  // An idle session was heard of long ago, and that was in order.
  heard_ = std::max(heard_, loop_.Now());
  heartbeat_ = std::min(heartbeat_, loop_.Now() - timings_.busy_heartbeat);
  ArmTimer();
}

void PeerSession::ArmTimer() {
  if (state_ == State::kClosed) return timer_.Clear();
  MonotonicTime next = heard_ + timings_.hello;
  if (state_ == State::kLive) {
    next = heard_ + (busy_ ? timings_.busy_silence : timings_.idle_silence);
    if (dialled_) {
      next =
          std::min(next, heartbeat_ + (busy_ ? timings_.busy_heartbeat : timings_.idle_heartbeat));
    }
  }
  timer_.Set(next, [this] { OnTimer(); });
}

void PeerSession::OnTimer() {
  const MonotonicTime now = loop_.Now();
  if (state_ == State::kOpening) {
    if (now < heard_ + timings_.hello) return ArmTimer();
    return Close(PeerLost(dialled_ ? "the peer did not answer Hello" : "no Hello came"), false);
  }
  busy_ = host_->RoomCount(*this) > 0;
  if (now >= heard_ + (busy_ ? timings_.busy_silence : timings_.idle_silence)) {
    return Close(PeerLost(absl::StrCat("nothing heard of the peer for ",
                                       absl::FormatDuration(now - heard_))),
                 false);
  }
  const absl::Duration interval = busy_ ? timings_.busy_heartbeat : timings_.idle_heartbeat;
  if (dialled_ && now >= heartbeat_ + interval) {
    heartbeat_ = now;
    SendOutput({.acknowledged = last_received_,
                .epoch = own_.epoch,
                .content = Heartbeat{.nonce = ++heartbeat_nonce_}});
  }
  ArmTimer();
}

}  // namespace pageferry::agent
