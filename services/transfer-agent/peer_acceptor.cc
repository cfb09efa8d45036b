#include "services/transfer-agent/peer_acceptor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "libs/common/error.h"
#include "libs/common/log.h"

namespace pageferry::agent {
namespace {

LogArea log_area("session");

}  // namespace

PeerAcceptor::PeerAcceptor(Loop& loop, Worker& worker, PeerDirectory& directory, const OwnSide& own,
                           std::map<transport::TransportKind, transport::Transport*> transports,
                           const PeerTimings& timings)
    : loop_(loop),
      worker_(worker),
      directory_(directory),
      own_(own),
      transports_(std::move(transports)),
      timings_(timings) {}

PeerAcceptor::~PeerAcceptor() = default;

void PeerAcceptor::Accept(std::shared_ptr<PeerStream> stream) {
  if (opening_.size() >= kMaxOpening) {
    stream->End(MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                          "too many sessions are being opened", {{"limit", "opening_sessions"}}),
                true);
    return;
  }
  const PeerId id = directory_.NextId();
  opening_[id] = std::make_unique<PeerSession>(loop_, *this, id, /*dialled=*/false,
                                               std::move(stream), timings_);
}

HelloReply PeerAcceptor::Answer(Hello& hello,
                                std::unique_ptr<transport::PassivePeer>& passive) const {
  while (true) {
    HelloReply reply = AnswerHello(own_, hello);
    if (reply.error.ok()) reply.error = directory_.MayAccept(hello.agent, hello.engine);
    if (!reply.error.ok()) return reply;
    const auto way = transports_.find(reply.transport.kind);
    if (way == transports_.end()) {
      reply.error = MakeError(absl::StatusCode::kInternal, Reason::kInternal,
                              "the policy allows a way that this agent does not have");
      return reply;
    }
    const auto offer = std::ranges::find(hello.transports, way->first, &TransportOffer::kind);
    auto accepted = way->second->Accept(
        {.name = ToString(hello.agent), .address = offer->address, .regions = hello.regions});
    if (accepted.ok()) {
      passive = *std::move(accepted);
      if (passive != nullptr) reply.transport.address = passive->address();
      return reply;
    }
    // Another way may do; each turn rules one out.
    offer->unusable = std::string(accepted.status().message());
  }
}

void PeerAcceptor::OnHello(PeerSession& session, Hello hello) {
  std::unique_ptr<transport::PassivePeer> passive;
  HelloReply reply = Answer(hello, passive);
  const absl::Status error = reply.error;
  const TransportChoice choice = reply.transport;
  session.SendHelloReply(own_.agent, std::move(reply));
  if (!error.ok()) {
    Log(LogLevel::kInfo, log_area, "hello_refused",
        {{"peer", ToString(hello.agent)}, {"why", error}});
    return session.Close(error);
  }
  const auto found = opening_.find(session.id());
  if (found == opening_.end() || session.state() == PeerSession::State::kClosed) {
    worker_.Post([passive = std::move(passive)]() mutable { passive.reset(); });
    return;
  }
  std::unique_ptr<PeerSession> owned = std::move(found->second);
  opening_.erase(found);
  directory_.Adopt({.session = std::move(owned),
                    .own = own_.agent,
                    .info = {.agent = hello.agent,
                             .engine = std::move(hello.engine),
                             .transport = choice.kind,
                             .driver = transports_.at(choice.kind)->driver(),
                             .dialled = false},
                    .transport_reason = choice.reason,
                    .mover = nullptr,
                    .passive = std::move(passive)});
  session.ReadNext();
}

void PeerAcceptor::OnClosed(PeerSession& session, const absl::Status& /*why*/) {
  const auto found = opening_.find(session.id());
  if (found == opening_.end()) return;
  loop_.Post([owned = std::move(found->second)]() mutable { owned.reset(); });
  opening_.erase(found);
}

}  // namespace pageferry::agent
