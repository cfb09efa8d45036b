#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/bootstrap_client.h"
#include "services/transfer-agent/engine_watch.h"
#include "services/transfer-agent/hello.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_dialler.h"
#include "services/transfer-agent/peer_directory.h"
#include "services/transfer-agent/ports.h"

namespace pageferry::agent {

/// Finds the session for a room: engine -> rank (dp by hint, only one, modulo or directory) ->
/// agent -> session.
///
/// A ticket waits for whatever is missing and is looked at again when the table changed, the
/// directory answered, or a dial ended; it ends with its deadline at the latest. An engine that is
/// not there or not ready is waited for at most `resolve_timeout`.
///
/// Loop-confined. Borrows the rest. Answers are posted: never inside Find.
class RankFinder final : public PeerFinder {
 public:
  RankFinder(Loop& loop, const OwnSide& own, EngineWatch& watch, BootstrapClient& client,
             PeerDirectory& directory, PeerDialler& dialler, absl::Duration resolve_timeout);
  ~RankFinder() override;

  /// Before anything else happens.
  void Bind(AgentCore& core) { core_ = &core; }
  void SetNamespace(const NamespaceName& name_space) { name_space_ = name_space; }

  void Find(int64_t ticket, const RankQuery& query, MonotonicTime deadline) override;
  void Cancel(int64_t ticket) override;

  /// This agent got its epoch: before that it cannot introduce itself.
  void LookAtAll();
  /// An engine's record changed.
  void OnEngineChanged(const EngineId& engine);
  /// A dial ended; see PeerDialler::Listener.
  void OnDialled(const AgentRef& agent, const absl::StatusOr<PeerId>& session, bool final);

  size_t waiting() const { return tickets_.size(); }

 private:
  struct Ticket {
    int64_t id = 0;
    RankQuery query;
    MonotonicTime deadline;            // of the room
    MonotonicTime gives_up;            // the same, or earlier while the engine is not there
    std::optional<AgentRef> dialling;  // waits for that dial
    bool looking_up = false;
    absl::Status last_error;  // why it waits
  };

  void Look(Ticket& ticket);
  void LookAgain(int64_t id);
  void LookUp(Ticket& ticket);
  void OnLookedUp(int64_t id, const absl::StatusOr<int64_t>& dp);
  void DialFor(Ticket& ticket, const RankRecord& rank);
  void StopDialling(Ticket& ticket);
  void Answer(int64_t id, absl::StatusOr<PeerId> result);
  void Wait(Ticket& ticket, absl::Status why);
  void GiveUpAt(Ticket& ticket, MonotonicTime time);
  void ArmTimer();
  void OnTimer();

  Loop& loop_;
  const OwnSide& own_;
  EngineWatch& watch_;
  BootstrapClient& client_;
  PeerDirectory& directory_;
  PeerDialler& dialler_;
  const absl::Duration resolve_timeout_;
  AgentCore* core_ = nullptr;
  NamespaceName name_space_;
  std::map<int64_t, Ticket> tickets_;
  std::map<EngineId, std::set<int64_t>> by_engine_;
  std::map<std::pair<AgentId, Epoch>, std::set<int64_t>> by_dial_;
  std::set<std::pair<MonotonicTime, int64_t>> deadlines_;
  LoopTimer timer_;
  const std::shared_ptr<bool> alive_;
};

}  // namespace pageferry::agent
