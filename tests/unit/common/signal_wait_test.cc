#include "libs/common/signal_wait.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pageferry {
namespace {

// Runs `body` in a child process and returns its exit status.
template <class Body>
int StatusOfChild(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(SignalWaitTest, ReturnsTheSignal) {
  EXPECT_EQ(StatusOfChild([] {
              SignalWait signals;
              std::thread sender([] { kill(getpid(), SIGINT); });
              const int number = signals.Wait();
              sender.join();
              _exit(number == SIGINT ? 7 : 1);
            }),
            7);
}

TEST(SignalWaitTest, RequestStopCountsAsTerm) {
  EXPECT_EQ(StatusOfChild([] {
              SignalWait signals;
              SignalWait::RequestStop();  // before Wait: not lost
              _exit(signals.Wait() == SIGTERM ? 7 : 1);
            }),
            7);
}

TEST(SignalWaitTest, ASecondSignalEndsAtOnce) {
  EXPECT_EQ(StatusOfChild([] {
              SignalWait signals;
              SignalWait::RequestStop();
              signals.Wait();
              kill(getpid(), SIGINT);
              while (true) pause();
            }),
            128 + SIGINT);
}

}  // namespace
}  // namespace pageferry
