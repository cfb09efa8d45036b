#pragma once

#include <memory>

namespace pageferry {

/// Lets go of `object` (a channel, a stub, a client that owns one) on a thread of its own. In gRPC
/// 1.51 the last reference to the last channel, dropped in a reaction, makes a pool thread join
/// itself. Thread-safe, never blocks. The thread lives until the process ends.
void ReleaseLater(std::shared_ptr<void> object);

/// As above, for an object with one owner.
template <class T>
void ReleaseLater(std::unique_ptr<T> object) {
  ReleaseLater(std::shared_ptr<void>(std::move(object)));
}

/// Waits until all that was handed in before this call is gone. For the end of main and of tests;
/// not from a reaction, nor from a destructor that runs on that thread.
void FlushReleases();

}  // namespace pageferry
