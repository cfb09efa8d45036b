#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/common/backoff.h"
#include "libs/common/ids.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/hello.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_directory.h"
#include "services/transfer-agent/peer_session.h"
#include "services/transfer-agent/peer_stream.h"
#include "services/transfer-agent/worker.h"

namespace pageferry::agent {

/// Makes sessions to prefill agents: connects, says Hello, opens the way to move pages.
///
///   Want --> kConnecting: stream, Hello -> answer -> Transport::Connect (worker) -> Adopt
///              |  the way failed: Hello again with `unusable`
///              |  the peer is away: kWaiting with backoff, as long as somebody wants it
///              |  it refuses for good: kRefused; the answer is kept for a moment
///
/// One try at a time for each (agent, epoch), whoever wants it. Loop-confined. Owns the sessions
/// until they are the directory's; borrows the rest.
class PeerDialler final : public PeerSession::Host {
 public:
  /// Told when a try ended: the session, or why not. With `final` the answer stands for all that
  /// wait; else another try follows. On the loop, never inside a call of this class.
  using Listener =
      std::function<void(const AgentRef& agent, absl::StatusOr<PeerId> session, bool final)>;

  PeerDialler(Loop& loop, Worker& worker, PeerConnector& connector, PeerDirectory& directory,
              const OwnSide& own,
              std::map<transport::TransportKind, transport::Transport*> transports,
              const PeerTimings& timings, const Backoff::Options& backoff);
  ~PeerDialler() override;

  /// Before anything else happens.
  void Bind(Listener listener) { listener_ = std::move(listener); }

  /// Dials `agent` at `address` unless that is going on.
  void Want(const AgentRef& agent, const std::string& address);
  /// Nobody waits for `agent` any more.
  void Drop(const AgentRef& agent);
  /// Ends all that is going on: the engine went or changed.
  void DropAll();

 private:
  struct Dial;
  using Key = std::pair<AgentId, Epoch>;

  void Try(Dial& dial);
  void OnHello(PeerSession& session, Hello hello) override {}
  void OnHelloReply(PeerSession& session, HelloReply reply) override;
  void OnFrame(PeerSession& session, Sequence sequence, PeerFrame frame) override {}
  void OnRefused(PeerSession& session, Reason reason) override {}
  void OnClosed(PeerSession& session, const absl::Status& why) override;
  // Rooms come only when the directory has the session.
  int64_t RoomCount(const PeerSession& /*session*/) override { return 0; }
  void OnConnected(PeerId session, const HelloReply& reply,
                   absl::StatusOr<std::unique_ptr<transport::TransportPeer>> mover);
  void OnFailed(Dial& dial, const absl::Status& why);
  Dial* FindBySession(PeerId session);
  void Tell(const AgentRef& agent, absl::StatusOr<PeerId> session, bool final);
  void Forget(std::unique_ptr<PeerSession> session);

  Loop& loop_;
  Worker& worker_;
  PeerConnector& connector_;
  PeerDirectory& directory_;
  const OwnSide& own_;
  const std::map<transport::TransportKind, transport::Transport*> transports_;
  const PeerTimings timings_;
  const Backoff::Options backoff_;
  Listener listener_;
  std::map<Key, std::unique_ptr<Dial>> dials_;
};

}  // namespace pageferry::agent
