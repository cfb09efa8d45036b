#pragma once

#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/common/backoff.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/bootstrap_client.h"
#include "services/transfer-agent/engine_table.h"
#include "services/transfer-agent/loop.h"

namespace pageferry::agent {

/// Keeps the port tables of the engines that this agent was asked for, by one watch at the
/// bootstrap service that is resumed by version after a loss. During an outage the last table
/// stays.
///
/// Loop-confined. Borrows loop and client. At most `kMaxEngines`: the one asked for longest ago
/// goes.
class EngineWatch {
 public:
  static constexpr size_t kMaxEngines = 1000;
  static constexpr absl::Duration kWarmUpPoll = absl::Seconds(2);

  /// Told of engines whose record changed, and of all when the service was lost or found again.
  using Listener = std::function<void(const EngineId& engine)>;

  EngineWatch(Loop& loop, BootstrapClient& client, const Backoff::Options& backoff);

  /// Before anything else happens.
  void Bind(Listener listener) { listener_ = std::move(listener); }

  /// The tenant whose engines are meant; forgets those of another.
  void SetNamespace(const NamespaceName& name_space);

  /// What is known of `engine`; from now on it is watched. Null where nothing is.
  const EngineRecord* Ask(const EngineId& engine);

  /// OK: the service tells of all engines asked for. Else why not (yet).
  absl::Status Reachable(const EngineId& engine) const;

  /// Ends the watch.
  void Stop();

 private:
  struct Asked {
    MonotonicTime last;
    bool sent = false;      // the stream in use asks for it
    bool answered = false;  // a snapshot of such a stream has come
  };

  void Restart(TableVersion version);
  void RestartSoon();
  void OnEvent(TableEvent event);
  void OnEnd(const absl::Status& why);
  void EvictOldest();

  Loop& loop_;
  BootstrapClient& client_;
  Backoff backoff_;
  Listener listener_;
  NamespaceName name_space_;
  std::map<EngineId, Asked> asked_;
  EngineTable table_;
  std::unique_ptr<BootstrapClient::Stream> stream_;
  absl::Status error_;
  LoopTimer timer_;  // the next start of the stream
  bool stopped_ = false;
};

}  // namespace pageferry::agent
