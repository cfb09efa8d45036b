#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "libs/common/ids.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/messages.h"
#include "services/transfer-agent/profile.h"

/// What opens a session between agents and keeps it up: the frames of peer.proto that the core
/// never sees.
namespace pageferry::agent {

/// The protocol that this release speaks.
inline constexpr int32_t kPeerProtocol = 1;

/// A way that the dialling side can use.
struct TransportOffer {
  transport::TransportKind kind = transport::TransportKind::kLocal;
  std::string address;
  std::string unusable;  ///< why it is not offered any more; empty: it is offered
  bool required = false;

  friend bool operator==(const TransportOffer&, const TransportOffer&) = default;
};

/// The way that the other side chose.
struct TransportChoice {
  transport::TransportKind kind = transport::TransportKind::kLocal;
  std::string address;
  std::string reason;  ///< for people

  friend bool operator==(const TransportChoice&, const TransportChoice&) = default;
};

struct Hello {
  SessionId session;
  bool resume = false;
  int32_t protocol_min = kPeerProtocol;
  int32_t protocol_max = kPeerProtocol;
  AgentRef agent;
  AgentRef expected;
  EngineInfo engine;
  std::string host_id;
  std::vector<TransportOffer> transports;  ///< best first; kinds that we do not know left out
  std::vector<transport::RemoteRegion> regions;
};

struct HelloReply {
  absl::Status error;  ///< OK: the session is open, and only then is the rest filled
  SessionId session;
  bool resumed = false;
  int32_t protocol = kPeerProtocol;
  AgentRef agent;
  EngineInfo engine;
  std::string host_id;
  TransportChoice transport;
  std::vector<transport::RemoteRegion> regions;
  int32_t room_credit = 0;  ///< 0: not told
};

struct Heartbeat {
  int64_t nonce = 0;
};
struct HeartbeatReply {
  int64_t nonce = 0;
};

/// Content that is refused, and why; the session and its rooms go on.
struct BadFrame {
  RoomKey room;
  absl::Status error;
};

/// A frame as it came, of either direction.
struct PeerInput {
  Sequence sequence;  ///< 0 for those that are never sent again
  Sequence acknowledged;
  Epoch epoch;
  std::variant<PeerFrame, Hello, HelloReply, Heartbeat, HeartbeatReply, BadFrame> content;
};

/// A frame to be sent.
struct PeerOutput {
  Sequence sequence;
  Sequence acknowledged;
  Epoch epoch;
  std::variant<PeerFrame, Hello, HelloReply, Heartbeat, HeartbeatReply> content;
};

}  // namespace pageferry::agent
