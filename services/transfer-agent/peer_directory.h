#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "libs/common/ids.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/agent_probe.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_session.h"
#include "services/transfer-agent/ports.h"
#include "services/transfer-agent/worker.h"

namespace pageferry::agent {

/// A session as operators see it.
struct PeerView {
  AgentRef agent;
  std::string engine;
  RankCoordinate coordinate;
  std::string transport;
  std::string transport_reason;
  bool dialled = false;
  std::string state;
  int64_t rooms = 0;
};

/// The live sessions with other agents, one for each (agent, epoch), with the way to move pages
/// over each. PeerAcceptor and PeerDialler make them; from Adopt on they are here.
///
/// Loop-confined. Owns sessions and movers, borrows the rest. A mover is destroyed on the worker,
/// since that waits until it touches no memory any more.
class PeerDirectory final : public PeerPort, public MovePort, public PeerSession::Host {
 public:
  struct NewSession {
    std::unique_ptr<PeerSession> session;
    AgentRef own;
    PeerInfo info;
    std::string transport_reason;
    std::unique_ptr<transport::TransportPeer> mover;  ///< null where the other side moves
    std::unique_ptr<transport::PassivePeer>
        passive;  ///< null where this side moves, or need not help
  };

  PeerDirectory(Loop& loop, Worker& worker, AgentProbe& probe);
  ~PeerDirectory() override;

  /// Sessions that peers may have open here.
  static constexpr int64_t kMaxAccepted = 4096;

  /// Before anything else happens.
  void Bind(AgentCore& core) { core_ = &core; }

  /// A number for a new session.
  PeerId NextId() { return last_id_ = last_id_.Next(); }

  /// Whether a session that a peer dials may take its place here.
  /// kFailedPrecondition, STALE_EPOCH: a later incarnation of the same rank has one;
  /// kResourceExhausted, LIMIT_REACHED: there are kMaxAccepted.
  absl::Status MayAccept(const AgentRef& agent, const EngineInfo& engine) const;

  /// Opens the session and tells the core. An older one with the same agent at the same end is
  /// closed first: its rooms fail. Not from inside the core.
  PeerId Adopt(NewSession added);

  /// The live session that was dialled to `agent`. kUnavailable, DRAINING: it takes no new rooms.
  /// Nothing: there is none.
  std::optional<absl::StatusOr<PeerId>> FindDialled(const AgentRef& agent) const;

  /// Tells all that no new rooms are taken.
  void SendGoAway(const absl::Status& why);

  /// Ends all sessions: the engine behind them went or changed.
  void CloseAll(const absl::Status& why);

  bool empty() const { return peers_.empty(); }
  std::vector<PeerView> Views() const;

  // PeerPort and MovePort
  void Send(PeerId peer, PeerFrame frame) override;
  void Close(PeerId peer, absl::Status reason) override;
  void Start(int64_t ticket, PeerId peer, transport::Batch batch) override;

 private:
  struct Peer {
    std::unique_ptr<PeerSession> session;
    PeerInfo info;
    std::string transport_reason;
    std::unique_ptr<transport::TransportPeer> mover;
    std::unique_ptr<transport::PassivePeer> passive;
  };

  void OnHello(PeerSession& session, Hello hello) override {}
  void OnHelloReply(PeerSession& session, HelloReply reply) override {}
  void OnFrame(PeerSession& session, Sequence sequence, PeerFrame frame) override;
  void OnRefused(PeerSession& session, Reason reason) override;
  void OnClosed(PeerSession& session, const absl::Status& why) override;
  int64_t RoomCount(const PeerSession& session) override;

  void Remove(PeerId id, const absl::Status& why);
  /// A connection that broke is of no use to later rooms: a new session makes a new one.
  void CloseIfBroken(PeerId id, const absl::Status& moved);
  void CountSessions();

  Loop& loop_;
  Worker& worker_;
  AgentProbe& probe_;
  AgentCore* core_ = nullptr;
  PeerId last_id_;
  std::map<PeerId, Peer> peers_;
};

}  // namespace pageferry::agent
