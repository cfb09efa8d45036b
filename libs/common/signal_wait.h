#pragma once

namespace pageferry {

/// Turns SIGTERM and SIGINT into an orderly end. At most one per process.
///
/// Create it first in main, before any thread: it blocks the two signals for this thread and all
/// that it starts, so that they reach `Wait` alone.
class SignalWait {
 public:
  SignalWait();
  SignalWait(const SignalWait&) = delete;
  SignalWait& operator=(const SignalWait&) = delete;

  /// Waits for a signal, or for `RequestStop`, and returns its number. From then on a further
  /// signal ends the process at once with status 128 + number: the operator does not want to wait
  /// for the drain.
  int Wait();

  /// Makes `Wait` return as if SIGTERM had come. From any thread, at any time.
  static void RequestStop();
};

}  // namespace pageferry
