// Plain fields, written and read in an order that only absl_sync.cc lets ThreadSanitizer see.
// TSan ends the program with an error on a report, so that passing is the assertion.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace pageferry {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 2000;

// Runs `body` in kThreads threads and waits for them.
template <typename Body>
void InThreads(Body body) {
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
}

TEST(TsanShims, MutexAndTryLock) {
  absl::Mutex mutex;
  int count = 0;
  int tries = 0;
  InThreads([&] {
    for (int i = 0; i < kRounds; ++i) {
      const absl::MutexLock lock(&mutex);
      ++count;
    }
    while (!mutex.TryLock()) {
    }
    ++tries;
    mutex.Unlock();
    const absl::ReaderMutexLock lock(&mutex);
    EXPECT_GE(count, kRounds);
  });
  EXPECT_EQ(count, kThreads * kRounds);
  EXPECT_EQ(tries, kThreads);
}

TEST(TsanShims, AwaitAndItsRelatives) {
  absl::Mutex mutex;
  int turn = 0;
  bool never = false;
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) {
      const auto my_turn = [&turn] { return turn % 2 == 1; };
      const absl::MutexLock lock(&mutex, absl::Condition(&my_turn));
      ++turn;
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    const auto my_turn = [&turn] { return turn % 2 == 0; };
    const absl::MutexLock lock(&mutex);
    if (i % 2 == 0) {
      mutex.Await(absl::Condition(&my_turn));
    } else {
      EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&my_turn), absl::Seconds(60)));
    }
    ++turn;
  }
  other.join();
  EXPECT_FALSE(mutex.LockWhenWithTimeout(absl::Condition(&never), absl::Milliseconds(1)));
  EXPECT_EQ(turn, 2 * kRounds);
  mutex.Unlock();
}

TEST(TsanShims, CondVar) {
  absl::Mutex mutex;
  absl::CondVar changed;
  bool ready = false;
  int value = 0;
  std::thread other([&] {
    value = 7;
    const absl::MutexLock lock(&mutex);
    ready = true;
    changed.SignalAll();
  });
  {
    const absl::MutexLock lock(&mutex);
    while (!ready) changed.WaitWithTimeout(&mutex, absl::Seconds(60));
  }
  EXPECT_EQ(value, 7);
  other.join();
}

TEST(TsanShims, NotificationAlsoWhenTheWaiterComesLate) {
  for (int i = 0; i < 200; ++i) {
    absl::Notification notification;
    int value = 0;
    std::thread other([&] {
      value = i;
      notification.Notify();
    });
    if (i % 2 == 0) {
      while (!notification.HasBeenNotified()) std::this_thread::yield();
    } else {
      EXPECT_TRUE(notification.WaitForNotificationWithTimeout(absl::Seconds(60)));
    }
    EXPECT_EQ(value, i);
    other.join();
  }
}

TEST(TsanShims, BlockingCounter) {
  absl::BlockingCounter counter(kThreads);
  std::vector<int> values(kThreads, 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      values[i] = 1;
      counter.DecrementCount();
    });
  }
  counter.Wait();
  EXPECT_EQ(values, std::vector<int>(kThreads, 1));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace pageferry
