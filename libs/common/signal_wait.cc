#include "libs/common/signal_wait.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

namespace pageferry {
namespace {

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

int WaitForOne() {
  const sigset_t signals = Signals();
  int number = 0;
  while (sigwait(&signals, &number) != 0) {
  }
  return number;
}

}  // namespace

SignalWait::SignalWait() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

int SignalWait::Wait() {
  const int number = WaitForOne();
  std::thread([] {
    _exit(128 + WaitForOne());  // layers: the second signal means at once
  }).detach();
  return number;
}

void SignalWait::RequestStop() { kill(getpid(), SIGTERM); }

}  // namespace pageferry
