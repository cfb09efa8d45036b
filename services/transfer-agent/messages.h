#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"
#include "libs/common/page_runs.h"
#include "libs/transport/transport.h"
#include "services/transfer-agent/profile.h"

/// What engines and peers say, as the core of the agent sees it. One struct for
/// each frame of agent.proto and peer.proto that rooms are made of; the edges
/// (convert.h) translate, and have checked every number against the bounds that
/// do not depend on the agent's state.
namespace pageferry::agent {

/// A room and one attempt at it. Attempt 0: "the one that is granted" (prefill)
/// or "any" (abort).
struct RoomKey {
  RoomId id;
  Attempt attempt;

  friend auto operator<=>(const RoomKey&, const RoomKey&) = default;
  template <class H>
  friend H AbslHashValue(H state, const RoomKey& key) {
    return H::combine(std::move(state), key.id, key.attempt);
  }
};

/// Numbers of the proto enum: the smallest wins where ranks agree by minimum.
enum class RoomState : int8_t {
  kFailed = 1,
  kBootstrapping = 2,
  kWaitingForInput = 3,
  kTransferring = 4,
  kSuccess = 5,
};
inline bool IsTerminal(RoomState state) {
  return state == RoomState::kFailed || state == RoomState::kSuccess;
}

/// Indices of one state component, by its position in the profile.
struct StateIndices {
  int32_t component = 0;
  std::vector<int64_t> indices;

  friend bool operator==(const StateIndices&, const StateIndices&) = default;
};

struct TraceContext {
  std::string traceparent;
  std::string tracestate;
};

/// A session with another agent, as long as this process lives; never used
/// twice.
using PeerId = StrongNumber<struct PeerIdTag, int64_t>;

// --- engine to agent ---

struct OpenSend {
  RoomKey room;
  absl::Duration timeout = absl::Seconds(300);
  int32_t priority = 0;
  std::string capability;
  TraceContext trace;
  bool dummy = false;
};
struct SendChunk {
  RoomKey room;
  std::vector<PageRun> runs;
  int64_t first_position = 0;
  bool last = false;
  int64_t aux_slot = -1;  ///< -1: none
  std::vector<StateIndices> states;
};
struct OpenReceive {
  RoomKey room;
  EngineId prefill_engine;
  std::vector<PageRun> runs;
  int64_t aux_slot = -1;  ///< -1: none
  std::vector<StateIndices> states;
  int64_t cached_prefix_pages = 0;
  std::optional<int32_t> prefill_dp_rank;
  absl::Duration timeout = absl::Seconds(300);
  int32_t priority = 0;
  std::string capability;
  TraceContext trace;
  bool checksum = false;
};
struct AbortCommand {
  RoomKey room;
  std::string detail;
};
struct FailCommand {
  RoomKey room;
  std::string detail;
};
struct CloseRoom {
  RoomKey room;
};
using EngineCommand =
    std::variant<OpenSend, SendChunk, OpenReceive, AbortCommand, FailCommand, CloseRoom>;

// --- agent to engine ---

struct RoomEvent {
  RoomKey room;
  RoomState state = RoomState::kBootstrapping;
  bool drained = false;
  absl::Status error;
  int64_t pages = 0;
  ByteCount bytes;
  std::optional<transport::TransportKind> transport;
  absl::Duration elapsed;
  std::optional<absl::Duration> since_grant;
};
struct PrefixKnown {
  RoomKey room;
  int64_t cached_prefix_pages = 0;
  int64_t granted_pages = 0;
};
struct CommandRefused {
  RoomKey room;
  std::string command;
  absl::Status error;
};
struct EngineLost {
  EngineId engine;
  AgentRef agent;
  absl::Status error;
};
struct Backpressure {
  bool engaged = false;
  std::string limit;
};
using EngineEvent = std::variant<RoomEvent, PrefixKnown, CommandRefused, EngineLost, Backpressure>;

// --- decode to prefill ---

struct Grant {
  RoomKey room;
  std::vector<PageRun> runs;
  int64_t aux_slot = -1;  ///< -1: none
  std::vector<StateIndices> states;
  int64_t cached_prefix_pages = 0;
  bool dummy = false;
  int32_t decode_rank_count = 1;
  absl::Duration timeout;
  int32_t priority = 0;
  std::string capability;
  TraceContext trace;
  bool checksum = false;
};
struct Taken {
  RoomKey room;
  int64_t pages = 0;
  ByteCount bytes;
  bool complete = false;
};

// --- prefill to decode ---

struct Offer {
  RoomKey room;
  std::vector<PageRun> runs;
  int64_t first_granted_index = 0;
  bool last = false;
  int64_t aux_slot = -1;  ///< -1: none
  std::vector<StateIndices> states;
  transport::SealRef seal;
};
struct Completed {
  RoomKey room;
  int64_t pages = 0;
  ByteCount bytes;
};
struct Failed {
  RoomKey room;
  absl::Status error;
};

// --- both ways ---

struct Abort {
  RoomKey room;
  absl::Status error;
  std::string capability;  ///< of a room that was not granted
};
struct AbortReply {
  RoomKey room;
  bool drained = false;
  bool unknown = false;
};
struct Refused {
  Sequence sequence;  // of the frame that was refused
  RoomKey room;
  absl::Status error;
};
struct GoAway {
  absl::Status error;
};

using PeerFrame =
    std::variant<Grant, Taken, Offer, Completed, Failed, Abort, AbortReply, Refused, GoAway>;

}  // namespace pageferry::agent
