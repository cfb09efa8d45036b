#pragma once

#include <memory>
#include <utility>

#include "pageferry/agent/v1/agent.pb.h"
#include "services/transfer-agent/engine_stream.h"
#include "services/transfer-agent/server_stream.h"

namespace pageferry::agent {

/// The reactor of TransferAgent.Session; its life is drawn in server_stream.h. All events that
/// wait go out in one message.
class EngineSession final : public ServerStream<agent_pb::SessionRequest, agent_pb::SessionResponse,
                                                agent_pb::AgentEvent>,
                            public EngineStream {
 public:
  /// Events that may wait for a slow engine: four for each of the rooms that an agent may have.
  static constexpr Outbox::Limits kLimits{.max_frames = 262'144, .max_bytes = ByteCount(64 << 20)};

  EngineSession(Loop& loop, grpc::CallbackServerContext& context, EngineStreamHandler& handler,
                const Outbox::Limits& limits = kLimits)
      : ServerStream(loop, context, limits), handler_(handler) {}

  bool Send(agent_pb::AgentEvent event) override;
  void ReadNext() override { ServerStream::ReadNext(); }
  void End(const absl::Status& why, bool flush) override { ServerStream::End(why, flush); }

 private:
  absl::AnyInvocable<void()> Receive(const agent_pb::SessionRequest& request) override;
  void OnEnded(const absl::Status& why) override;
  bool Pack(const agent_pb::AgentEvent& event, agent_pb::SessionResponse& response) override;
  std::shared_ptr<EngineStream> Self();

  EngineStreamHandler& handler_;
  size_t packed_bytes_ = 0;
};

}  // namespace pageferry::agent
