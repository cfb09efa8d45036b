#include "services/transfer-agent/peer_acceptor.h"

#include <utility>

#include "libs/common/error.h"
#include "libs/common/log.h"

namespace pageferry::agent {
namespace {

LogArea log_area("session");

}  // namespace

PeerAcceptor::PeerAcceptor(Loop& loop, PeerDirectory& directory, const OwnSide& own,
                           const PeerTimings& timings)
    : loop_(loop), directory_(directory), own_(own), timings_(timings) {}

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

void PeerAcceptor::OnHello(PeerSession& session, Hello hello) {
  HelloReply reply = AnswerHello(own_, hello);
  if (reply.error.ok()) reply.error = directory_.MayAccept(hello.agent, hello.engine);
  const absl::Status error = reply.error;
  const TransportChoice choice = reply.transport;
  session.SendHelloReply(own_.agent, std::move(reply));
  if (!error.ok()) {
    Log(LogLevel::kInfo, log_area, "hello_refused",
        {{"peer", ToString(hello.agent)}, {"why", error}});
    return session.Close(error);
  }
  const auto found = opening_.find(session.id());
  if (found == opening_.end() || session.state() == PeerSession::State::kClosed) return;
  std::unique_ptr<PeerSession> owned = std::move(found->second);
  opening_.erase(found);
  directory_.Adopt({.session = std::move(owned),
                    .own = own_.agent,
                    .info = {.agent = hello.agent,
                             .engine = std::move(hello.engine),
                             .transport = choice.kind,
                             .driver = choice.kind == transport::TransportKind::kLocal
                                           ? transport::Driver::kTarget
                                           : transport::Driver::kSource,
                             .dialled = false},
                    .transport_reason = choice.reason,
                    .mover = nullptr});
  session.ReadNext();
}

void PeerAcceptor::OnClosed(PeerSession& session, const absl::Status& /*why*/) {
  const auto found = opening_.find(session.id());
  if (found == opening_.end()) return;
  loop_.Post([owned = std::move(found->second)]() mutable { owned.reset(); });
  opening_.erase(found);
}

}  // namespace pageferry::agent
