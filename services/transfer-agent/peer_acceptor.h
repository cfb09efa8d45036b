#pragma once

#include <map>
#include <memory>

#include "libs/common/ids.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/hello.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_directory.h"
#include "services/transfer-agent/peer_session.h"
#include "services/transfer-agent/worker.h"

namespace pageferry::agent {

/// Answers the agents that dial this one: from the stream's start until Hello was answered, then
/// the session is the directory's.
///
/// Loop-confined. Owns the sessions that wait for Hello, at most `kMaxOpening`; borrows the rest.
class PeerAcceptor final : public PeerSession::Host {
 public:
  static constexpr size_t kMaxOpening = 1024;

  PeerAcceptor(Loop& loop, Worker& worker, PeerDirectory& directory, const OwnSide& own,
               std::map<transport::TransportKind, transport::Transport*> transports,
               const PeerTimings& timings);
  ~PeerAcceptor() override;

  /// A stream has begun. Refuses it with kResourceExhausted, LIMIT_REACHED beyond the bound.
  void Accept(std::shared_ptr<PeerStream> stream);

 private:
  void OnHello(PeerSession& session, Hello hello) override;
  /// The answer, and this end of the way that it names.
  HelloReply Answer(Hello& hello, std::unique_ptr<transport::PassivePeer>& passive) const;
  void OnHelloReply(PeerSession& session, HelloReply reply) override {}
  void OnFrame(PeerSession& session, Sequence sequence, PeerFrame frame) override {}
  void OnRefused(PeerSession& session, Reason reason) override {}
  void OnClosed(PeerSession& session, const absl::Status& why) override;
  // Rooms come only when the directory has the session.
  int64_t RoomCount(const PeerSession& /*session*/) override { return 0; }

  Loop& loop_;
  Worker& worker_;
  PeerDirectory& directory_;
  const OwnSide& own_;
  const std::map<transport::TransportKind, transport::Transport*> transports_;
  const PeerTimings timings_;
  std::map<PeerId, std::unique_ptr<PeerSession>> opening_;
};

}  // namespace pageferry::agent
