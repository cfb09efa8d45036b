#include "services/transfer-agent/core_loop.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_ports.h"
#include "tests/unit/transfer-agent/core_testing.h"

namespace pageferry::agent {
namespace {

class CoreLoopTest : public testing::Test {
 protected:
  CoreLoopTest() : core_({}, ports_.Get()) {
    core_.SetEngine(TestEngine(Role::kPrefill), TestAgent("self"));
  }
  static CoreTask Open(int64_t room, absl::Duration timeout) {
    return [room, timeout](AgentCore& core, MonotonicTime now) {
      core.OnEngineCommand(OpenSend{.room = {RoomId(room), Attempt(0)}, .timeout = timeout}, now);
    };
  }

  FakePorts ports_;
  AgentCore core_;
  FakeClock clock_;
};

TEST_F(CoreLoopTest, InlineRunsAtOnceAndInOrder) {
  InlineCoreLoop loop(clock_, clock_);
  std::vector<int> order;
  loop.Post([&](AgentCore&, MonotonicTime) {
    order.push_back(1);
    loop.Post([&](AgentCore&, MonotonicTime) { order.push_back(3); });  // not inside this one
    order.push_back(2);
  });
  EXPECT_TRUE(order.empty());  // before Start
  loop.Start(core_);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(loop.Call([](AgentCore& core, MonotonicTime) { return core.LiveRooms(); }), 0);
  loop.Stop();
  EXPECT_FALSE(loop.Post([](AgentCore&, MonotonicTime) {}));
  EXPECT_EQ(loop.Call([](AgentCore&, MonotonicTime) { return 1; }), std::nullopt);
}

TEST_F(CoreLoopTest, InlineTimersFollowTheFakeClock) {
  InlineCoreLoop loop(clock_, clock_);
  loop.Start(core_);
  loop.Post(Open(1, absl::Seconds(20)));
  loop.Post(Open(2, absl::Seconds(10)));
  EXPECT_EQ(clock_.pending(), 1u);
  clock_.Advance(absl::Seconds(10) - absl::Nanoseconds(1));
  EXPECT_EQ(core_.LiveRooms(), 2);
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(core_.LiveRooms(), 1);
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(core_.LiveRooms(), 0);
  loop.Stop();
  EXPECT_EQ(clock_.pending(), 0u);
}

TEST_F(CoreLoopTest, ThreadSerialisesPostsOfManyThreads) {
  ThreadCoreLoop loop(RealClock::Get());
  loop.Start(core_);
  int64_t unguarded = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        loop.Post([&](AgentCore&, MonotonicTime) { ++unguarded; });
        if (n % 50 == 0) (void)loop.Call([](AgentCore& core, MonotonicTime) { core.Ledger(); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loop.Call([&](AgentCore&, MonotonicTime) { return unguarded; }), 2000);
}

class FailureNotice final : public EnginePort {
 public:
  void Send(EngineEvent event) override {
    const auto* room = std::get_if<RoomEvent>(&event);
    if (room != nullptr && room->drained) failed.Notify();
  }
  absl::Notification failed;
};

TEST_F(CoreLoopTest, ThreadWakesForTheCoresDeadline) {
  FailureNotice notice;
  AgentCore core({},
                 {notice, ports_.peers, ports_.finder, ports_.seals, ports_.mover, ports_.probe});
  core.SetEngine(TestEngine(Role::kPrefill), TestAgent("self"));
  ThreadCoreLoop loop(RealClock::Get());
  loop.Start(core);
  loop.Post(Open(1, absl::Hours(1)));
  loop.Post(Open(2, absl::Milliseconds(20)));  // earlier than what the thread may wait for already
  notice.failed.WaitForNotification();
  EXPECT_EQ(loop.Call([](AgentCore& at, MonotonicTime) { return at.LiveRooms(); }), 1);
  loop.Stop();
}

TEST_F(CoreLoopTest, StopRunsWhatWasPostedAndNoMore) {
  std::atomic<int> ran = 0;
  ThreadCoreLoop loop(RealClock::Get());
  for (int n = 0; n < 100; ++n) loop.Post([&](AgentCore&, MonotonicTime) { ++ran; });
  loop.Start(core_);
  loop.Stop();
  EXPECT_EQ(ran, 100);
  EXPECT_FALSE(loop.Post([&](AgentCore&, MonotonicTime) { ++ran; }));
  EXPECT_FALSE(loop.Call([](AgentCore&, MonotonicTime) {}));
  loop.Stop();
}

}  // namespace
}  // namespace pageferry::agent
