#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "services/transfer-agent/agent_core.h"
#include "tests/fakes/fake_ports.h"
#include "tests/unit/transfer-agent/core_testing.h"

namespace pageferry::agent {
namespace {

constexpr int64_t kRooms = 100'000;
constexpr int64_t kAtOnce = 500;
constexpr PeerId kSession{1};

/// A prefill and a decode core; what one says, the other hears at once.
class Pair {
 public:
  explicit Pair(const CoreLimits& limits) {
    for (const Role role : {Role::kPrefill, Role::kDecode}) {
      auto& [ports, core] = side_[role];
      core = std::make_unique<AgentCore>(limits, ports.Get());
      core->SetEngine(Large(TestEngine(role)), TestAgent("self"));
      PeerInfo peer = TestPeer(role);
      peer.engine = Large(std::move(peer.engine));
      core->OnPeerUp(kSession, peer, now);
    }
  }

  FakePorts& ports(Role role) { return side_[role].first; }
  AgentCore& core(Role role) { return *side_[role].second; }

  /// Lets all that is under way run to its end.
  void Run() {
    while (true) {
      const bool busy = Carry(Role::kPrefill, Role::kDecode) + Carry(Role::kDecode, Role::kPrefill);
      FakePorts& decode = ports(Role::kDecode);
      if (!busy && decode.finder.open.empty() && decode.mover.running.empty()) return;
      for (const auto& [ticket, search] : std::exchange(decode.finder.open, {})) {
        core(Role::kDecode).OnPeerFound(ticket, kSession, now);
      }
      for (const auto& [ticket, move] : std::exchange(decode.mover.running, {})) {
        core(Role::kDecode).OnMoveDone(ticket, absl::OkStatus(), now);
      }
    }
  }

  MonotonicTime now = TestStart();

 private:
  /// With a page for each room: no two live ones may have one in common.
  static EngineInfo Large(EngineInfo engine) {
    for (Entry& entry : engine.profile.entries) entry.pages.item_count = kRooms;
    return engine;
  }

  bool Carry(Role from, Role to) {
    auto frames = std::exchange(ports(from).peers.frames, {});
    for (auto& [peer, frame] : frames) {
      core(to).OnPeerFrame(kSession, Sequence(1), std::move(frame), now);
    }
    return !frames.empty();
  }

  std::map<Role, std::pair<FakePorts, std::unique_ptr<AgentCore>>> side_;
};

TEST(ManyRooms, I9_LedgersAreAtZeroAfter100000Rooms) {
  CoreLimits limits;
  limits.max_tombstones = 1'000;
  Pair pair(limits);
  AgentCore& prefill = pair.core(Role::kPrefill);
  AgentCore& decode = pair.core(Role::kDecode);
  for (int64_t first = 0; first < kRooms; first += kAtOnce) {
    for (int64_t room = first; room < first + kAtOnce; ++room) {
      const RoomKey open{RoomId(room), Attempt(0)};
      const RoomKey key{RoomId(room), Attempt(1)};
      // One in eight has no send, one in eight is aborted at decode, one in eight at prefill.
      if (room % 8 != 0) prefill.OnEngineCommand(OpenSend{.room = open}, pair.now);
      decode.OnEngineCommand(OpenReceive{.room = key,
                                         .prefill_engine = EngineId("prefill"),
                                         .runs = {{room, 1}},
                                         .timeout = absl::Seconds(10)},
                             pair.now);
      if (room % 8 == 1) decode.OnEngineCommand(AbortCommand{.room = key}, pair.now);
      if (room % 8 == 2) prefill.OnEngineCommand(AbortCommand{.room = open}, pair.now);
      if (room % 8 == 0) continue;
      prefill.OnEngineCommand(SendChunk{.room = open, .runs = {{room, 1}}, .last = true}, pair.now);
    }
    pair.Run();
    // Deadlines end what has no counterpart.
    pair.now += absl::Seconds(2);
    for (AgentCore* core : {&prefill, &decode}) core->OnTime(pair.now);
    pair.Run();
    for (const Role role : {Role::kPrefill, Role::kDecode}) pair.ports(role).engine.events.clear();
  }
  EXPECT_EQ(pair.ports(Role::kDecode).probe.completed, kRooms / 8 * 5);
  pair.now += absl::Seconds(400);
  for (AgentCore* core : {&prefill, &decode}) {
    while (core->NextDeadline() <= pair.now) core->OnTime(pair.now);
  }
  pair.Run();
  pair.now += absl::Seconds(400);
  for (AgentCore* core : {&prefill, &decode}) {
    while (core->NextDeadline() <= pair.now) core->OnTime(pair.now);
    for (const auto& [what, count] : core->Ledger()) EXPECT_EQ(count, 0) << what;
    EXPECT_EQ(core->LiveRooms(), 0);
    EXPECT_EQ(core->NextDeadline(), MonotonicTime::InfiniteFuture());
  }
  EXPECT_TRUE(pair.ports(Role::kPrefill).seals.whole.empty());
}

}  // namespace
}  // namespace pageferry::agent
