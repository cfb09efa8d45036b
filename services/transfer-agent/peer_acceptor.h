#pragma once

#include <map>
#include <memory>

#include "libs/common/ids.h"
#include "services/transfer-agent/hello.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_directory.h"
#include "services/transfer-agent/peer_session.h"

namespace pageferry::agent {

/// Answers the agents that dial this one: from the stream's start until Hello was answered, then
/// the session is the directory's.
///
/// Loop-confined. Owns the sessions that wait for Hello, at most `kMaxOpening`; borrows the rest.
class PeerAcceptor final : public PeerSession::Host {
 public:
  static constexpr size_t kMaxOpening = 1024;

  PeerAcceptor(Loop& loop, PeerDirectory& directory, const OwnSide& own,
               const PeerTimings& timings);
  ~PeerAcceptor() override;

  /// A stream has begun. Refuses it with kResourceExhausted, LIMIT_REACHED beyond the bound.
  void Accept(std::shared_ptr<PeerStream> stream);

 private:
  void OnHello(PeerSession& session, Hello hello) override;
  void OnHelloReply(PeerSession& session, HelloReply reply) override {}
  void OnFrame(PeerSession& session, Sequence sequence, PeerFrame frame) override {}
  void OnRefused(PeerSession& session, Reason reason) override {}
  void OnClosed(PeerSession& session, const absl::Status& why) override;
  // Rooms come only when the directory has the session.
  int64_t RoomCount(const PeerSession& /*session*/) override { return 0; }

  Loop& loop_;
  PeerDirectory& directory_;
  const OwnSide& own_;
  const PeerTimings timings_;
  std::map<PeerId, std::unique_ptr<PeerSession>> opening_;
};

}  // namespace pageferry::agent
