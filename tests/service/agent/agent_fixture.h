#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "pageferry/peer/v1/peer.pb.h"
#include "services/bootstrap/bootstrap_server.h"
#include "services/transfer-agent/agent.h"
#include "tests/service/agent/raw_peer.h"
#include "tests/service/agent/test_engine.h"

namespace pageferry::agent {

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
  virtual AgentOptions OptionsOf(const std::string& name) const;
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
