#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/engine_host.h"
#include "services/transfer-agent/loop.h"

namespace pageferry::agent {

/// Empties the agent: no new rooms, live ones may end, then they are aborted, then (if asked) the
/// cell is given up.
///
/// Loop-confined. Borrows loop and host.
class Drainer {
 public:
  struct Result {
    int64_t finished = 0;
    int64_t aborted = 0;
  };
  using Done = absl::AnyInvocable<void(Result)>;

  Drainer(Loop& loop, EngineHost& host) : loop_(loop), host_(host), timer_(loop) {}

  /// Before anything else happens.
  void Bind(AgentCore& core) { core_ = &core; }

  /// Several drains may run at a time, each with its own time.
  void Start(absl::Duration timeout, bool deregister, Done done);

 private:
  struct Drain {
    MonotonicTime deadline;
    MonotonicTime gives_up;  // on rooms that do not end even when aborted
    bool deregister = false;
    int64_t rooms = 0;
    int64_t aborted = 0;
    bool aborting = false;
    Done done;
  };

  void Look();
  int64_t AbortAll();

  Loop& loop_;
  EngineHost& host_;
  AgentCore* core_ = nullptr;
  std::vector<Drain> drains_;
  LoopTimer timer_;
};

}  // namespace pageferry::agent
