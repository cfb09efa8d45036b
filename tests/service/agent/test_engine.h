#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "pageferry/agent/v1/agent.pb.h"

namespace pageferry::agent {

namespace pb = ::pageferry::agent::v1;
namespace topology_pb = ::pageferry::topology::v1;

/// Waits for what happens on other threads, at most 20 s.
bool Eventually(const std::function<bool()>& condition);

/// Statuses are read as an engine does: code, reason, metadata.
struct MappedPool {
  std::string name;
  std::byte* data = nullptr;  // behind the agent's own area
  int64_t size = 0;
  bool adopted = false;
};

/// An engine rank that speaks to its agent through generated stubs.
///
/// Thread-compatible, but events are collected by a thread of its own.
class TestEngine {
 public:
  /// `address` as in `Agent::engine_addresses`.
  explicit TestEngine(const std::string& address);
  ~TestEngine();
  TestEngine(TestEngine&&) noexcept;

  absl::StatusOr<MappedPool> CreatePool(const std::string& name, int64_t size);
  absl::StatusOr<pb::CreatePoolResponse> CreatePool(const pb::CreatePoolRequest& request);
  absl::Status ReleasePool(const std::string& name);
  absl::StatusOr<pb::RegisterEngineResponse> Register(const pb::RegisterEngineRequest& request);
  absl::StatusOr<pb::GetAgentResponse> GetAgent();
  absl::StatusOr<pb::ListRoomsResponse> ListRooms(const pb::ListRoomsRequest& request = {});
  absl::StatusOr<pb::GetRoomResponse> GetRoom(int64_t room);
  absl::StatusOr<pb::AbortRoomResponse> AbortRoom(int64_t room);
  absl::StatusOr<pb::DrainResponse> Drain(absl::Duration timeout);
  absl::StatusOr<pb::ImportPoolResponse> ImportPool(const pb::ImportPoolRequest& request);

  /// Starts the stream and says open.
  void Open(const std::string& engine_id);
  /// Starts the stream only.
  void StartSession();
  void Send(const pb::SessionRequest& request);
  void Send(const pb::EngineCommand& command);
  /// Half-closes; the agent ends the stream in turn.
  void CloseSession();
  /// Goes away like a process that died.
  void CancelSession();
  /// The status of the ended stream.
  absl::Status SessionStatus();

  /// The first event that `wanted` accepts, of those that came or come; each event is looked at
  /// until it was returned once. Nothing after 20 s or where the stream has ended.
  std::optional<pb::AgentEvent> WaitFor(const std::function<bool(const pb::AgentEvent&)>& wanted);
  /// The terminal, drained event of a room.
  std::optional<pb::RoomEvent> WaitForEnd(int64_t room);
  /// The first FAILED event of a room, drained or not.
  std::optional<pb::RoomEvent> WaitForFailure(int64_t room);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// --- commands ---

topology_pb::PageRun PagesAt(int64_t first, int64_t count);
pb::EngineCommand OpenSendOf(int64_t room, int32_t attempt = 0);
/// An `aux_slot` of -1 is none.
pb::EngineCommand ChunkOf(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                          int64_t position, bool last, int64_t aux_slot);
pb::EngineCommand OpenReceiveOf(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                                int64_t aux_slot, int64_t prefix = 0);
pb::EngineCommand AbortOf(int64_t room);

}  // namespace pageferry::agent
