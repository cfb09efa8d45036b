#include "absl/time/time.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/backoff.h"
#include "libs/common/clock.h"
#include "libs/common/gate.h"
#include "libs/common/release_later.h"
#include "libs/common/scheduler.h"
#include "tests/fakes/fake_clock.h"

namespace pageferry {
namespace {

using testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(30);

TEST(FakeClockTest, FiresInOrderOfTimeThenInsertion) {
  FakeClock clock;
  std::string order;
  const MonotonicTime start = clock.Now();
  clock.RunAt(start + absl::Seconds(2), [&] { order += "c"; });
  clock.RunAt(start + absl::Seconds(1), [&] { order += "a"; });
  clock.RunAt(start + absl::Seconds(1), [&] { order += "b"; });
  clock.RunAt(start + absl::Seconds(3), [&] { order += "d"; });
  EXPECT_EQ(clock.Advance(absl::Milliseconds(999)), 0U);
  EXPECT_EQ(clock.next_deadline(), start + absl::Seconds(1));
  EXPECT_EQ(clock.Advance(absl::Milliseconds(1001)), 3U);
  EXPECT_EQ(order, "abc");
  EXPECT_EQ(clock.pending(), 1U);
}

TEST(FakeClockTest, TasksSeeTheirOwnTimeAndMayScheduleCancelAndAdvance) {
  FakeClock clock;
  const MonotonicTime start = clock.Now();
  std::vector<absl::Duration> ticks;
  std::function<void()> tick = [&] {
    ticks.push_back(clock.Now() - start);
    if (ticks.size() < 3) clock.RunAt(clock.Now() + absl::Seconds(1), tick);
  };
  clock.RunAt(start + absl::Seconds(1), tick);
  const TaskId cancelled = clock.RunAt(start + absl::Seconds(2), [] { FAIL(); });
  clock.RunAt(start + absl::Milliseconds(1500), [&] {
    EXPECT_TRUE(clock.Cancel(cancelled));
    EXPECT_EQ(clock.Advance(absl::Milliseconds(500)), 1U);  // the tick at 2 s
  });
  EXPECT_EQ(clock.Advance(absl::Seconds(10)), 3U);  // not counting what the inner call ran
  EXPECT_THAT(ticks, ElementsAre(absl::Seconds(1), absl::Seconds(2), absl::Seconds(3)));
  EXPECT_EQ(clock.Now(), start + absl::Seconds(10));
}

TEST(FakeClockTest, PastDeadlinesRunAtTheNextAdvance) {
  FakeClock clock;
  bool ran = false;
  clock.RunAt(clock.Now() - absl::Seconds(1), [&] { ran = true; });
  EXPECT_FALSE(ran);
  const MonotonicTime now = clock.Now();
  EXPECT_EQ(clock.Advance(-absl::Seconds(5)), 1U);
  EXPECT_TRUE(ran);
  EXPECT_EQ(clock.Now(), now);
}

TEST(FakeClockTest, WallFollowsAndJumpsAlone) {
  FakeClock clock;
  const absl::Time wall = clock.WallNow();
  const MonotonicTime now = clock.Now();
  clock.Advance(absl::Seconds(5));
  EXPECT_EQ(clock.WallNow() - wall, absl::Seconds(5));
  clock.JumpWall(-absl::Hours(1));
  EXPECT_EQ(clock.WallNow() - wall, absl::Seconds(5) - absl::Hours(1));
  EXPECT_EQ(clock.Now() - now, absl::Seconds(5));
}

TEST(RealClockTest, DoesNotGoBack) {
  const MonotonicTime first = RealClock::Get().Now();
  EXPECT_GE(RealClock::Get().Now(), first);
}

TEST(RealSchedulerTest, RunsInOrder) {
  RealScheduler scheduler(RealClock::Get());
  const MonotonicTime soon = RealClock::Get().Now() + absl::Milliseconds(20);
  std::string order;
  absl::Notification done;
  scheduler.RunAt(soon + absl::Milliseconds(1), [&] {
    order += "c";
    done.Notify();
  });
  scheduler.RunAt(soon, [&] { order += "a"; });
  scheduler.RunAt(soon, [&] { order += "b"; });
  done.WaitForNotification();
  EXPECT_EQ(order, "abc");
  EXPECT_GE(RealClock::Get().Now(), soon);
}

TEST(RealSchedulerTest, AnEarlierTaskOvertakesALaterOne) {
  RealScheduler scheduler(RealClock::Get());
  const TaskId late = scheduler.RunAt(MonotonicTime::InfiniteFuture(), [] { FAIL(); });
  absl::Notification done;
  scheduler.RunAt(RealClock::Get().Now(), [&] { done.Notify(); });
  done.WaitForNotification();
  EXPECT_TRUE(scheduler.Cancel(late));
  EXPECT_FALSE(scheduler.Cancel(late));
  EXPECT_FALSE(scheduler.Cancel(TaskId(77)));
}

TEST(RealSchedulerTest, CancelAndWaitWaitsForTheTaskInProgress) {
  RealScheduler scheduler(RealClock::Get());
  absl::Notification started;
  absl::Notification may_end;
  std::atomic<bool> ended = false;
  const TaskId id = scheduler.RunAt(RealClock::Get().Now(), [&] {
    started.Notify();
    may_end.WaitForNotification();
    ended = true;
  });
  started.WaitForNotification();
  EXPECT_FALSE(scheduler.Cancel(id));  // does not wait
  std::thread waiter([&] {
    EXPECT_FALSE(scheduler.CancelAndWait(id));
    EXPECT_TRUE(ended);
  });
  may_end.Notify();
  waiter.join();
}

TEST(RealSchedulerTest, DropsWhatIsPendingAtTheEnd) {
  auto held = std::make_shared<int>(1);
  {
    RealScheduler scheduler(RealClock::Get());
    scheduler.RunAt(RealClock::Get().Now() + absl::Hours(1), [held] { FAIL(); });
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(RealSchedulerTest, TasksMayScheduleAndCancel) {
  RealScheduler scheduler(RealClock::Get());
  absl::Notification done;
  scheduler.RunAt(RealClock::Get().Now(), [&] {
    const TaskId other = scheduler.RunAt(RealClock::Get().Now(), [] { FAIL(); });
    EXPECT_TRUE(scheduler.Cancel(other));
    scheduler.RunAt(RealClock::Get().Now(), [&] { done.Notify(); });
  });
  done.WaitForNotification();
}

TEST(BackoffTest, GrowsWithJitterWithinItsBounds) {
  Backoff backoff({}, 1);
  absl::Duration floor = absl::Milliseconds(100);
  for (int i = 0; i < 20; ++i) {
    const absl::Duration delay = backoff.Next();
    EXPECT_GE(delay, std::min(floor, absl::Seconds(15))) << i;
    EXPECT_LE(delay, std::min(2 * floor, absl::Seconds(30))) << i;
    floor *= 2;
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), absl::Milliseconds(200));
}

TEST(BackoffTest, ReplaysBySeedAndSpreadsBetweenSeeds) {
  std::vector<absl::Duration> firsts;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Backoff one({}, seed);
    Backoff same({}, seed);
    firsts.push_back(one.Next());
    EXPECT_EQ(firsts.back(), same.Next());
  }
  std::ranges::sort(firsts);
  EXPECT_LT(firsts.front(), absl::Milliseconds(110));
  EXPECT_GT(firsts.back(), absl::Milliseconds(190));
  EXPECT_TRUE(std::ranges::unique(firsts).empty());
  EXPECT_NE(RandomSeed(), RandomSeed());
}

TEST(BackoffTest, MendsBadOptions) {
  Backoff backoff({.initial = -absl::Seconds(1), .max = absl::ZeroDuration(), .multiplier = 0}, 1);
  for (int i = 0; i < 5; ++i) EXPECT_GE(backoff.Next(), absl::ZeroDuration());
}

TEST(GateTest, CountsAndRunsTheCallbackWhenTheLastLeaves) {
  Gate gate;
  auto first = gate.Enter();
  auto second = gate.Enter();
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(gate.in_flight(), 2);
  int calls = 0;
  gate.Close([&] { ++calls; });
  EXPECT_FALSE(gate.Enter().has_value());
  EXPECT_TRUE(gate.closed());
  first->Release();
  first->Release();
  EXPECT_EQ(calls, 0);
  Gate::Holder moved = *std::move(second);
  second.reset();  // NOLINT(bugprone-use-after-move): a holder moved from holds nothing
  EXPECT_EQ(calls, 0);
  moved.Release();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(gate.in_flight(), 0);
}

TEST(GateTest, CloseOfAnIdleGateCallsAtOnce) {
  Gate gate;
  int calls = 0;
  gate.Close([&] { ++calls; });
  gate.Close([&] { ++calls; });
  gate.Close();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(gate.WaitUntilIdle(MonotonicTime::InfinitePast()));
}

TEST(GateTest, WaitsForHoldersAndGivesUpAtItsDeadline) {
  Gate gate;
  auto holder = gate.Enter();
  gate.Close();
  EXPECT_FALSE(gate.WaitUntilIdle(RealClock::Get().Now() + absl::Milliseconds(1)));
  EXPECT_FALSE(gate.WaitUntilIdle(MonotonicTime::InfinitePast()));
  std::thread leaver([&] { holder.reset(); });
  EXPECT_TRUE(gate.WaitUntilIdle(RealClock::Get().Now() + kLong));
  leaver.join();
}

TEST(GateTest, HoldersMayOutliveTheGate) {
  auto gate = std::make_unique<Gate>();
  auto holder = gate->Enter();
  bool idle = false;
  gate->Close([&] { idle = true; });
  gate.reset();
  holder.reset();
  EXPECT_TRUE(idle);
}

TEST(ReleaseLaterTest, DestroysOnAnotherThread) {
  struct Owner {
    ~Owner() { *destroyed_on = std::this_thread::get_id(); }
    std::thread::id* destroyed_on;
  };
  std::thread::id destroyed_on;
  auto object = std::make_unique<Owner>();
  object->destroyed_on = &destroyed_on;
  ReleaseLater(std::move(object));
  ReleaseLater(std::shared_ptr<void>());
  FlushReleases();
  EXPECT_NE(destroyed_on, std::thread::id());
  EXPECT_NE(destroyed_on, std::this_thread::get_id());
}

}  // namespace
}  // namespace pageferry
