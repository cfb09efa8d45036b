#include "services/transfer-agent/engine_session.h"

namespace pageferry::agent {
namespace {

// Well below the bound of a message, so that one more event fits whatever it is.
constexpr int kMaxEvents = 4096;
constexpr size_t kMaxBytes = 1 << 20;

}  // namespace

std::shared_ptr<EngineStream> EngineSession::Self() {
  return std::static_pointer_cast<EngineSession>(shared_from_this());
}

bool EngineSession::Send(agent_pb::AgentEvent event) {
  const ByteCount bytes(static_cast<int64_t>(event.ByteSizeLong()));
  return Push(std::move(event), bytes);
}

absl::AnyInvocable<void()> EngineSession::Receive(const agent_pb::SessionRequest& request) {
  return
      [this, frame = ParseFrame(request)]() mutable { handler_.OnFrame(Self(), std::move(frame)); };
}

void EngineSession::OnEnded(const absl::Status& why) { handler_.OnStreamEnded(Self(), why); }

bool EngineSession::Pack(const agent_pb::AgentEvent& event, agent_pb::SessionResponse& response) {
  if (response.events().empty()) packed_bytes_ = 0;
  *response.add_events() = event;
  packed_bytes_ += event.ByteSizeLong();
  return response.events_size() < kMaxEvents && packed_bytes_ < kMaxBytes;
}

}  // namespace pageferry::agent
