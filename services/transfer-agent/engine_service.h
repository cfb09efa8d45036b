#pragma once

#include <functional>
#include <memory>
#include <string>

#include "services/transfer-agent/drainer.h"
#include "services/transfer-agent/engine_host.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_directory.h"
#include "services/transfer-agent/pool_store.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace pageferry::agent {

/// What the engine side works on. All loop-confined.
struct EngineServiceParts {
  Loop& loop;
  AgentCore& core;
  EngineHost& host;
  PoolStore& pools;
  PeerDirectory& directory;
  Drainer& drainer;
  const OwnSide& own;
  HostPort peer_endpoint;
  std::string version;
};

/// Serves pageferry.agent.v1.TransferAgent: checks what came, lets the loop do it, answers.
/// Thread-safe. Borrows the parts, which must outlive the server.
std::unique_ptr<grpc::Service> MakeEngineService(const EngineServiceParts& parts);

}  // namespace pageferry::agent
