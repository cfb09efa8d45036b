#pragma once

#include <memory>

#include "libs/common/grpc_runtime.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_stream.h"

namespace pageferry::agent {

/// Dials other agents by gRPC: one channel for each stream, so that no session waits for
/// another's connection.
///
/// Loop-confined. Borrows the loop, which must run until every stream has ended (WaitUntilEnded).
class GrpcPeerConnector final : public PeerConnector {
 public:
  GrpcPeerConnector(Loop& loop, const ChannelOptions& options);
  ~GrpcPeerConnector() override;

  std::shared_ptr<PeerStream> Connect(const std::string& address) override;

  /// Waits until no call is left, or until `deadline`. Not on the loop.
  bool WaitUntilEnded(MonotonicTime deadline);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry::agent
