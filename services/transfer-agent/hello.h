#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/peer_messages.h"
#include "services/transfer-agent/profile.h"
#include "services/transfer-agent/transport_choice.h"

/// How two agents meet: what Hello and its reply say and what either side demands. Pure.
namespace pageferry::agent {

/// This agent as it presents itself.
struct OwnSide {
  AgentRef agent;  ///< epoch 0 before the first claim was granted
  bool registered = false;
  bool draining = false;
  int32_t room_credit = 0;  ///< live rooms that a peer may have here; 0 is not told
  EngineInfo engine;
  std::vector<transport::RemoteRegion> regions;
  std::string host_id;
  TransportPolicy policy;
  std::map<transport::TransportKind, std::string> addresses;
};

/// Ways that failed before, each with why.
using UnusableWays = std::map<transport::TransportKind, std::string>;

Hello MakeHello(const OwnSide& own, const SessionId& session, const AgentRef& expected,
                const UnusableWays& unusable);

/// The prefill side's answer: an open session, or `error` with
/// kFailedPrecondition: PROTOCOL_VERSION, STALE_EPOCH (also for another agent's id),
/// ENGINE_NOT_REGISTERED, ENGINES_INCOMPATIBLE, NO_TRANSPORT, POLICY; kUnavailable, DRAINING;
/// kUnimplemented, UNSUPPORTED for another shape; kInvalidArgument, INVALID_FIELD for buffers
/// outside their regions.
HelloReply AnswerHello(const OwnSide& own, const Hello& hello);

/// What the decode side demands of an answer without error. The same reasons.
absl::Status CheckHelloReply(const OwnSide& own, const Hello& sent, const HelloReply& reply);

/// Every buffer of `profile` lies within one of `regions`. kInvalidArgument, INVALID_FIELD.
absl::Status CheckBuffers(const KvProfile& profile,
                          const std::vector<transport::RemoteRegion>& regions);

/// "id/epoch", for logs and messages.
std::string ToString(const AgentRef& agent);

}  // namespace pageferry::agent
