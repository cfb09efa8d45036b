#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "pageferry/peer/v1/peer.pb.h"
#include "services/bootstrap/bootstrap_server.h"
#include "services/transfer-agent/agent.h"

namespace pageferry::agent {

namespace pb = ::pageferry::agent::v1;
namespace peer_pb = ::pageferry::peer::v1;
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
  absl::Status ImportPool();

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

/// The dialling end of PeerTransfer.Session, frame by frame.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address);
  ~RawPeer();

  bool Send(const peer_pb::DecodeFrame& frame);
  /// Nothing when the stream has ended, or after 20 s.
  std::optional<peer_pb::PrefillFrame> Receive();
  /// Half-closes and waits for the end.
  absl::Status Finish();
  void Cancel();

  /// What `Data` answers.
  static absl::Status TryData(const std::string& address);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// --- commands ---

topology_pb::PageRun PagesAt(int64_t first, int64_t count);
pb::EngineCommand OpenSendOf(int64_t room, int32_t attempt = 0);
pb::EngineCommand ChunkOf(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                          int64_t position, bool last, int64_t aux_slot);
pb::EngineCommand OpenReceiveOf(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                                int64_t aux_slot, int64_t prefix = 0);
pb::EngineCommand AbortOf(int64_t room);

/// A bootstrap service and agents in this process: real servers, real shared memory.
class AgentTest : public testing::Test {
 protected:
  static constexpr int64_t kPages = 64;
  static constexpr int64_t kPageBytes = 4096;
  static constexpr int kEntries = 4;  // K and V of two layers
  static constexpr int64_t kSlots = 16;
  static constexpr int64_t kSlotBytes = 128;
  static constexpr int64_t kPoolBytes = kEntries * kPages * kPageBytes + kSlots * kSlotBytes;

  AgentTest();
  ~AgentTest() override;

  void StartBootstrap();
  void StopBootstrap() { bootstrap_.reset(); }
  /// Options of an agent named `name`, with a socket in the test's folder.
  AgentOptions OptionsOf(const std::string& name) const;
  absl::StatusOr<Agent> StartAgent(const std::string& name) {
    return Agent::Start(OptionsOf(name));
  }

  /// A rank 0 of a 1x1x1x1 engine in the pool "kv".
  static pb::RegisterEngineRequest EngineOf(const std::string& id, topology_pb::Role role);

  /// The hello of a decode agent that fits the engine of EngineOf.
  static peer_pb::DecodeFrame HelloOf(const Agent& prefill, int64_t expected_epoch);

  const std::string& folder() const { return folder_; }
  std::string engine_socket(const std::string& name) const;

  std::optional<bootstrap::BootstrapServer> bootstrap_;
  int bootstrap_port_ = 0;

 private:
  std::string folder_;
  std::string run_;
};

/// Two agents with an engine each, ready for rooms.
class PairTest : public AgentTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// The byte that belongs at (room, entry, offset of the room's n-th page).
  static std::byte Pattern(int64_t room, int entry, int64_t position, int64_t offset);
  void FillSource(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                  int64_t aux_slot);
  /// True where the target's pages hold the room's pattern from `prefix` on.
  bool TargetHolds(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                   int64_t aux_slot, int64_t prefix = 0);
  void ClearTarget();

  std::optional<Agent> prefill_agent_;
  std::optional<Agent> decode_agent_;
  std::optional<TestEngine> prefill_;
  std::optional<TestEngine> decode_;
  MappedPool source_;
  MappedPool target_;
};

}  // namespace pageferry::agent
