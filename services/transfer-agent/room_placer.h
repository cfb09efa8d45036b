#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "libs/common/backoff.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/bootstrap_client.h"
#include "services/transfer-agent/loop.h"

namespace pageferry::agent {

/// Tells the bootstrap service which DP rank holds a room: of prefill engines that spread rooms by
/// directory. One call in flight, what comes meanwhile goes with the next; after a failure again
/// with backoff.
///
/// Loop-confined. Borrows loop and client. At most `kMaxWaiting` rooms wait; the oldest ids go
/// first, since their lookups time out first.
class RoomPlacer {
 public:
  static constexpr size_t kMaxWaiting = 65'536;

  RoomPlacer(Loop& loop, BootstrapClient& client, const Backoff::Options& backoff);

  /// Whose rooms follow; forgets those of another engine.
  void SetEngine(const NamespaceName& name_space, const EngineId& engine, int64_t dp_rank);
  void Place(RoomId room);

 private:
  void Send();

  Loop& loop_;
  BootstrapClient& client_;
  Backoff backoff_;
  NamespaceName name_space_;
  EngineId engine_;
  int64_t dp_rank_ = 0;
  int64_t round_ = 0;  // of SetEngine
  std::vector<RoomId> waiting_;
  bool in_flight_ = false;
  LoopTimer timer_;
};

}  // namespace pageferry::agent
