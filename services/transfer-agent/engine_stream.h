#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "services/transfer-agent/convert_room.h"

/// The engine's session, without gRPC: engine_session.cc implements it, tests have a fake.
namespace pageferry::agent {

/// First command of a session.
struct OpenSession {
  std::string engine_id;
  std::string client;
};

/// One frame of an engine, checked.
struct EngineFrame {
  absl::Status error;  ///< the frame cannot be read: the session ends
  std::vector<std::variant<OpenSession, ParsedCommand>> commands;
};

/// Commands that one frame may carry.
inline constexpr int64_t kMaxCommands = 65'536;

/// Reads a frame. Pure; runs on gRPC's threads.
EngineFrame ParseFrame(const agent_pb::SessionRequest& request);

/// Loop-confined. The gRPC call behind it keeps itself alive until it has ended.
class EngineStream {
 public:
  virtual ~EngineStream() = default;
  /// False where the outbox is full: end the stream.
  virtual bool Send(agent_pb::AgentEvent event) = 0;
  virtual void ReadNext() = 0;
  /// Ends it with `why`; what waits is written first where `flush`.
  virtual void End(const absl::Status& why, bool flush) = 0;
};

/// Told of what comes on the streams of engines. Loop-confined; must not block.
class EngineStreamHandler {
 public:
  virtual ~EngineStreamHandler() = default;
  /// A frame came. The next one comes only after ReadNext.
  virtual void OnFrame(const std::shared_ptr<EngineStream>& stream, EngineFrame frame) = 0;
  /// The client has ended the stream or gone. At most once; call End.
  virtual void OnStreamEnded(const std::shared_ptr<EngineStream>& stream,
                             const absl::Status& why) = 0;
};

}  // namespace pageferry::agent
