#include "services/transfer-agent/peer_dialler.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/log.h"

namespace pageferry::agent {
namespace {

LogArea log_area("session");

/// Bound of what is remembered of agents that refused.
constexpr size_t kMaxDials = 4096;

/// True where another try at the same agent and epoch cannot go better.
bool IsFinal(const absl::Status& why) {
  const Reason reason = ReasonOf(why);
  if (reason == Reason::kDraining) return true;
  // The table will tell the new epoch; an engine that is starting will register.
  if (reason == Reason::kStaleEpoch || reason == Reason::kEngineNotRegistered) return false;
  return why.code() == absl::StatusCode::kInvalidArgument ||
         why.code() == absl::StatusCode::kFailedPrecondition ||
         why.code() == absl::StatusCode::kUnimplemented ||
         why.code() == absl::StatusCode::kPermissionDenied ||
         why.code() == absl::StatusCode::kUnauthenticated;
}

}  // namespace

struct PeerDialler::Dial {
  Dial(Loop& loop, const Backoff::Options& options) : backoff(options, RandomSeed()), timer(loop) {}

  AgentRef agent;
  std::string address;
  Backoff backoff;
  LoopTimer timer;  // set: waits for the next try, or keeps a refusal
  absl::Status refused;
  UnusableWays unusable;
  Hello hello;
  std::unique_ptr<PeerSession> session;  // set: a try is going on
};

PeerDialler::PeerDialler(Loop& loop, Worker& worker, PeerConnector& connector,
                         PeerDirectory& directory, const OwnSide& own,
                         std::map<transport::TransportKind, transport::Transport*> transports,
                         const PeerTimings& timings, const Backoff::Options& backoff)
    : loop_(loop),
      worker_(worker),
      connector_(connector),
      directory_(directory),
      own_(own),
      transports_(std::move(transports)),
      timings_(timings),
      backoff_(backoff) {}

PeerDialler::~PeerDialler() = default;

void PeerDialler::Want(const AgentRef& agent, const std::string& address) {
  std::unique_ptr<Dial>& dial = dials_[{agent.id, agent.epoch}];
  if (dial != nullptr && !dial->refused.ok()) return Tell(agent, dial->refused, true);
  if (dial != nullptr) return;
  if (dials_.size() > kMaxDials) {
    dials_.erase({agent.id, agent.epoch});
    return Tell(agent,
                MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                          "too many agents are being dialled", {{"limit", "dials"}}),
                true);
  }
  dial = std::make_unique<Dial>(loop_, backoff_);
  dial->agent = agent;
  dial->address = address;
  Try(*dial);
}

void PeerDialler::Drop(const AgentRef& agent) {
  const auto found = dials_.find({agent.id, agent.epoch});
  if (found == dials_.end() || !found->second->refused.ok()) return;
  Forget(std::move(found->second->session));
  dials_.erase(found);
}

void PeerDialler::DropAll() {
  for (auto& [key, dial] : dials_) Forget(std::move(dial->session));
  dials_.clear();
}

void PeerDialler::Try(Dial& dial) {
  Log(LogLevel::kVerbose, log_area, "dial",
      {{"peer", ToString(dial.agent)}, {"address", dial.address}});
  const SessionId session(absl::StrCat(absl::Hex(RandomSeed(), absl::kZeroPad16),
                                       absl::Hex(RandomSeed(), absl::kZeroPad16)));
  dial.hello = MakeHello(own_, session, dial.agent, dial.unusable);
  dial.session = std::make_unique<PeerSession>(loop_, *this, directory_.NextId(), /*dialled=*/true,
                                               connector_.Connect(dial.address), timings_);
  dial.session->SendHello(own_.agent, dial.hello);
}

void PeerDialler::OnHelloReply(PeerSession& session, HelloReply reply) {
  Dial* const dial = FindBySession(session.id());
  if (dial == nullptr) return;
  const absl::Status status =
      reply.error.ok() ? CheckHelloReply(own_, dial->hello, reply) : reply.error;
  if (!status.ok()) return session.Close(status);
  const auto transport = transports_.find(reply.transport.kind);
  if (transport == transports_.end()) {
    return session.Close(MakeError(absl::StatusCode::kInternal, Reason::kInternal,
                                   "the peer chose a way that was not offered"));
  }
  if (transport->second->driver() != transport::Driver::kTarget) {
    return OnConnected(session.id(), reply, nullptr);
  }
  transport::PeerSpec spec{
      .name = ToString(reply.agent), .address = reply.transport.address, .regions = reply.regions};
  worker_.Post([this, id = session.id(), way = transport->second, spec = std::move(spec),
                reply = std::move(reply)]() mutable {
    way->ConnectLater(spec, [this, id, reply = std::move(reply)](auto mover) mutable {
      loop_.Post([this, id, reply = std::move(reply), mover = std::move(mover)]() mutable {
        OnConnected(id, reply, std::move(mover));
      });
    });
  });
}

void PeerDialler::OnConnected(PeerId session, const HelloReply& reply,
                              absl::StatusOr<std::unique_ptr<transport::TransportPeer>> mover) {
  Dial* const dial = FindBySession(session);
  if (dial == nullptr || dial->session->state() == PeerSession::State::kClosed) {
    worker_.Post([mover = std::move(mover)]() mutable { mover = nullptr; });
    return;
  }
  if (!mover.ok()) {
    Log(LogLevel::kWarning, log_area, "transport_failed",
        {{"peer", ToString(dial->agent)},
         {"transport", transport::TransportName(reply.transport.kind)},
         {"why", mover.status()}});
    dial->unusable[reply.transport.kind] = std::string(mover.status().message());
    Forget(std::move(dial->session));
    return Try(*dial);
  }
  const auto driver = transports_.at(reply.transport.kind)->driver();
  const AgentRef agent = dial->agent;
  // As Hello said: a claim that was renewed meanwhile has another epoch, which the peer does not
  // know.
  const AgentRef own = dial->hello.agent;
  std::unique_ptr<PeerSession> owned = std::move(dial->session);
  PeerSession& opened = *owned;
  dials_.erase({agent.id, agent.epoch});
  const PeerId id = directory_.Adopt({.session = std::move(owned),
                                      .own = own,
                                      .info = {.agent = reply.agent,
                                               .engine = reply.engine,
                                               .transport = reply.transport.kind,
                                               .driver = driver,
                                               .dialled = true,
                                               .room_credit = reply.room_credit},
                                      .transport_reason = reply.transport.reason,
                                      .mover = *std::move(mover)});
  opened.ReadNext();
  Tell(agent, id, true);
}

void PeerDialler::OnClosed(PeerSession& session, const absl::Status& why) {
  Dial* const dial = FindBySession(session.id());
  if (dial == nullptr) return;
  Forget(std::move(dial->session));
  OnFailed(*dial, why);
}

void PeerDialler::OnFailed(Dial& dial, const absl::Status& why) {
  const bool final = IsFinal(why);
  Log(final ? LogLevel::kWarning : LogLevel::kInfo, log_area, "dial_failed",
      {{"peer", ToString(dial.agent)}, {"address", dial.address}, {"final", final}, {"why", why}});
  const MonotonicTime next = loop_.Now() + dial.backoff.Next();
  const AgentRef agent = dial.agent;
  if (final) {
    dial.refused = why;
    dial.timer.Set(next, [this, agent] { dials_.erase({agent.id, agent.epoch}); });
  } else {
    dial.timer.Set(next, [this, &dial] { Try(dial); });
  }
  Tell(agent, why, final);
}

PeerDialler::Dial* PeerDialler::FindBySession(PeerId session) {
  for (auto& [key, dial] : dials_) {
    if (dial->session != nullptr && dial->session->id() == session) return dial.get();
  }
  return nullptr;
}

void PeerDialler::Tell(const AgentRef& agent, absl::StatusOr<PeerId> session, bool final) {
  loop_.Post(
      [this, agent, session = std::move(session), final] { listener_(agent, session, final); });
}

void PeerDialler::Forget(std::unique_ptr<PeerSession> session) {
  if (session == nullptr) return;
  session->Close(
      MakeError(absl::StatusCode::kUnavailable, Reason::kPeerLost, "the dialling side gave up"));
  loop_.Post([session = std::move(session)]() mutable { session.reset(); });
}

}  // namespace pageferry::agent
