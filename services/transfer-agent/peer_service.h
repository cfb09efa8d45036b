#pragma once

#include <memory>

#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_acceptor.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace pageferry::agent {

/// Serves pageferry.peer.v1.PeerTransfer to agents that dial this one. `Session` becomes a
/// PeerStream of the acceptor; `Data` is UNIMPLEMENTED, UNSUPPORTED until the `grpc` way comes.
/// Thread-safe. Borrows both, which must outlive the server.
std::unique_ptr<grpc::Service> MakePeerService(Loop& loop, PeerAcceptor& acceptor);

}  // namespace pageferry::agent
