#include "services/transfer-agent/peer_directory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/log.h"
#include "services/transfer-agent/hello.h"

namespace pageferry::agent {
namespace {

LogArea log_area("session");

absl::Status PeerLost(absl::string_view what) {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kPeerLost, what);
}

}  // namespace

PeerDirectory::PeerDirectory(Loop& loop, Worker& worker, AgentProbe& probe)
    : loop_(loop), worker_(worker), probe_(probe) {}

PeerDirectory::~PeerDirectory() = default;

absl::Status PeerDirectory::MayAccept(const AgentRef& agent, const EngineInfo& engine) const {
  int64_t others = 0;
  for (const auto& [id, peer] : peers_) {
    if (peer.info.dialled) continue;
    if (peer.info.agent.id != agent.id) {
      ++others;
      continue;
    }
    // Epochs are those of a cell.
    const bool same_cell = peer.info.engine.engine_id == engine.engine_id &&
                           peer.info.engine.coordinate == engine.coordinate;
    if (same_cell && peer.info.agent.epoch > agent.epoch) {
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                       absl::StrCat("a session of epoch ", peer.info.agent.epoch.value(),
                                    " of this rank is open"),
                       {{"have", absl::StrCat(peer.info.agent.epoch.value())},
                        {"got", absl::StrCat(agent.epoch.value())}});
    }
  }
  if (others < kMaxAccepted) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                   "too many sessions are open",
                   {{"limit", "peer_sessions"}, {"value", absl::StrCat(kMaxAccepted)}});
}

PeerId PeerDirectory::Adopt(NewSession added) {
  for (auto it = peers_.begin(); it != peers_.end();) {
    const Peer& peer = (it++)->second;
    if (peer.info.agent.id == added.info.agent.id && peer.info.dialled == added.info.dialled) {
      const absl::Status why = PeerLost("a newer session of the same agent took its place");
      peer.session->Close(why);
      Remove(peer.session->id(), why);
    }
  }
  const PeerId id = added.session->id();
  added.session->SetHost(*this);
  added.session->Open(added.own, added.info.agent);
  Log(LogLevel::kInfo, log_area, "session_opened",
      {{"peer", ToString(added.info.agent)},
       {"engine", added.info.engine.engine_id},
       {"coordinate", pageferry::ToString(added.info.engine.coordinate)},
       {"dialled", added.info.dialled},
       {"transport", transport::TransportName(added.info.transport)},
       {"reason", added.transport_reason}});
  Peer& peer = peers_[id];
  peer = {.session = std::move(added.session),
          .info = std::move(added.info),
          .transport_reason = std::move(added.transport_reason),
          .mover = std::move(added.mover),
          .passive = std::move(added.passive)};
  CountSessions();
  core_->OnPeerUp(id, peer.info, loop_.Now());
  return id;
}

std::optional<absl::StatusOr<PeerId>> PeerDirectory::FindDialled(const AgentRef& agent) const {
  for (const auto& [id, peer] : peers_) {
    if (!peer.info.dialled || !(peer.info.agent == agent)) continue;
    if (peer.session->state() != PeerSession::State::kLive) continue;
    if (peer.session->going_away()) {
      return MakeError(absl::StatusCode::kUnavailable, Reason::kDraining,
                       "the prefill agent is draining");
    }
    return id;
  }
  return std::nullopt;
}

void PeerDirectory::SendGoAway(const absl::Status& why) {
  for (auto& [id, peer] : peers_) peer.session->Send(GoAway{.error = why});
}

void PeerDirectory::CloseAll(const absl::Status& why) {
  while (!peers_.empty()) {
    const PeerId id = peers_.begin()->first;
    peers_.begin()->second.session->Close(why);
    Remove(id, why);
  }
}

std::vector<PeerView> PeerDirectory::Views() const {
  std::vector<PeerView> views;
  views.reserve(peers_.size());
  for (const auto& [id, peer] : peers_) {
    views.push_back(
        {.agent = peer.info.agent,
         .engine = peer.info.engine.engine_id.value(),
         .coordinate = peer.info.engine.coordinate,
         .transport = std::string(transport::TransportName(peer.info.transport)),
         .transport_reason = peer.transport_reason,
         .dialled = peer.info.dialled,
         .state = peer.session->state() == PeerSession::State::kLive ? "live" : "closing",
         .rooms = core_->RoomsOfPeer(id)});
  }
  return views;
}

void PeerDirectory::Send(PeerId peer, PeerFrame frame) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) found->second.session->Send(std::move(frame));
}

void PeerDirectory::Close(PeerId peer, absl::Status reason) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) found->second.session->Close(reason);
}

void PeerDirectory::Start(int64_t ticket, PeerId peer, transport::Batch batch) {
  auto done = [this, ticket, peer](absl::Status status) {
    loop_.Post([this, ticket, peer, status = std::move(status)] {
      core_->OnMoveDone(ticket, status, loop_.Now());
      CloseIfBroken(peer, status);
    });
  };
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.mover == nullptr) {
    const auto kind =
        found == peers_.end() ? transport::TransportKind::kLocal : found->second.info.transport;
    return done(MakeError(absl::StatusCode::kUnavailable, Reason::kTransport,
                          "the session has ended",
                          {{"transport", std::string(transport::TransportName(kind))}}));
  }
  found->second.mover->Write(std::move(batch), std::move(done));
}

void PeerDirectory::CloseIfBroken(PeerId id, const absl::Status& moved) {
  const auto found = peers_.find(id);
  if (found == peers_.end() || found->second.info.transport == transport::TransportKind::kLocal ||
      moved.code() != absl::StatusCode::kUnavailable) {
    return;
  }
  found->second.session->Close(PeerLost(moved.message()));
}

void PeerDirectory::OnFrame(PeerSession& session, Sequence sequence, PeerFrame frame) {
  core_->OnPeerFrame(session.id(), sequence, std::move(frame), loop_.Now());
}

void PeerDirectory::OnRefused(PeerSession& session, Reason reason) {
  probe_.FrameRefused(reason);
  Log(LogLevel::kVerbose, log_area, "frame_refused",
      {{"peer", ToString(session.peer())}, {"reason", ReasonName(reason)}});
}

void PeerDirectory::OnClosed(PeerSession& session, const absl::Status& why) {
  Remove(session.id(), why);
}

int64_t PeerDirectory::RoomCount(const PeerSession& session) {
  return core_->RoomsOfPeer(session.id());
}

void PeerDirectory::Remove(PeerId id, const absl::Status& why) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer peer = std::move(found->second);
  peers_.erase(found);
  CountSessions();
  Log(LogLevel::kInfo, log_area, "session_closed",
      {{"peer", ToString(peer.info.agent)},
       {"dialled", peer.info.dialled},
       {"rooms", core_->RoomsOfPeer(id)},
       {"why", why}});
  core_->OnPeerDown(id, why, loop_.Now());
  if (peer.mover != nullptr || peer.passive != nullptr) {
    worker_.Post([mover = std::move(peer.mover), passive = std::move(peer.passive)]() mutable {
      mover.reset();
      passive.reset();
    });
  }
  // It may be the caller: let it return first.
  loop_.Post([session = std::move(peer.session)]() mutable { session.reset(); });
}

void PeerDirectory::CountSessions() {
  int64_t dialled = 0;
  for (const auto& [id, peer] : peers_) dialled += peer.info.dialled ? 1 : 0;
  probe_.Sessions(dialled, static_cast<int64_t>(peers_.size()) - dialled);
}

}  // namespace pageferry::agent
