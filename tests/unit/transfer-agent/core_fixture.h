#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "services/transfer-agent/agent_core.h"
#include "tests/fakes/fake_ports.h"
#include "tests/unit/transfer-agent/core_testing.h"

namespace pageferry::agent {

inline constexpr PeerId kPeer{7};
inline constexpr PeerId kOtherPeer{8};

inline RoomKey Key(int64_t room, int64_t attempt) { return {RoomId(room), Attempt(attempt)}; }

/// A core with fake ports and two sessions.
class CoreTest : public testing::Test {
 protected:
  explicit CoreTest(Role role, const CoreLimits& limits = {}) { Make(role, limits); }

  void Make(Role role, const CoreLimits& limits) {
    core_ = std::make_unique<AgentCore>(limits, ports_.Get());
    core_->SetEngine(TestEngine(role), TestAgent("self"));
    core_->OnPeerUp(kPeer, TestPeer(role, "peer"), now_);
    core_->OnPeerUp(kOtherPeer, TestPeer(role, "other"), now_);
  }

  void Say(EngineCommand command) { core_->OnEngineCommand(std::move(command), now_); }
  void Hear(PeerFrame frame, PeerId peer = kPeer) {
    core_->OnPeerFrame(peer, Sequence(++sequence_), std::move(frame), now_);
  }
  void Pass(absl::Duration time) {
    now_ += time;
    while (core_->NextDeadline() <= now_) core_->OnTime(now_);
  }

  /// Events for the engine since the last call: "event SUCCESS drained; prefix 0+2".
  std::string Events() {
    std::vector<std::string> all;
    for (const EngineEvent& event : ports_.engine.events) all.push_back(Brief(event));
    ports_.engine.events.clear();
    return absl::StrJoin(all, "; ");
  }
  /// Frames since the last call.
  std::string Frames() {
    std::vector<std::string> all;
    for (const auto& [peer, frame] : ports_.peers.frames) all.push_back(Brief(frame));
    ports_.peers.frames.clear();
    return absl::StrJoin(all, "; ");
  }
  /// Nothing is held but tombstones.
  void ExpectQuiet() {
    for (const auto& [what, count] : core_->Ledger()) {
      if (what != "tombstones") {
        EXPECT_EQ(count, 0) << what;
      }
    }
    EXPECT_EQ(core_->LiveRooms(), 0);
    for (const auto& [which, count] : core_->RoomsByState()) EXPECT_EQ(count, 0);
    EXPECT_EQ(core_->RoomsOfPeer(kPeer), 0);
    EXPECT_TRUE(ports_.seals.whole.empty());
    EXPECT_EQ(ports_.seals.broken_twice, 0);
    EXPECT_TRUE(ports_.finder.open.empty());
  }

  FakePorts ports_;
  MonotonicTime now_ = TestStart();
  int64_t sequence_ = 0;
  std::unique_ptr<AgentCore> core_;
};

}  // namespace pageferry::agent
