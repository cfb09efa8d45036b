#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"
#include "libs/common/log.h"
#include "pageferry/agent/v1/agent.pb.h"
#include "services/transfer-agent/agent_core.h"
#include "services/transfer-agent/agent_probe.h"
#include "services/transfer-agent/engine_stream.h"
#include "services/transfer-agent/engine_watch.h"
#include "services/transfer-agent/hello.h"
#include "services/transfer-agent/lease_keeper.h"
#include "services/transfer-agent/loop.h"
#include "services/transfer-agent/peer_dialler.h"
#include "services/transfer-agent/peer_directory.h"
#include "services/transfer-agent/pool_store.h"
#include "services/transfer-agent/ports.h"
#include "services/transfer-agent/rank_finder.h"
#include "services/transfer-agent/room_placer.h"

namespace pageferry::agent {

enum class AgentState : int8_t {
  kIdle = 1,
  kRegistering = 2,
  kReady = 3,
  kDraining = 4,
  kSuperseded = 5
};

/// The engine of this agent: its registration, its one session, its pools.
///
///   no engine --Register--> registered --open, rooms drained--> session --ends--> registered
///        ^                                                                            |
///        \---------- grace time over, rooms drained: deregistered, pools gone --------/
///
/// Loop-confined. Borrows the parts.
class EngineHost final : public EnginePort,
                         public EngineStreamHandler,
                         public LeaseKeeper::Listener {
 public:
  struct Options {
    AgentId agent;
    Incarnation incarnation;
    absl::Duration lease_ttl = absl::Seconds(3);
    absl::Duration pool_grace = absl::Seconds(30);
    Backoff::Options backoff;
  };
  struct Parts {
    Loop& loop;
    OwnSide& own;
    BootstrapClient& bootstrap;
    PoolStore& pools;
    PeerDirectory& directory;
    PeerDialler& dialler;
    RankFinder& finder;
    EngineWatch& watch;
    RoomPlacer& placer;
    AgentProbe& probe;
  };

  EngineHost(Options options, Parts parts);

  /// Before anything else happens. `on_change` is told when the agent's state or its use changed.
  void Bind(AgentCore& core, std::function<void()> on_change);

  /// Where peers dial and where metrics are; before an engine can call.
  void SetEndpoints(HostPort endpoint, std::optional<HostPort> metrics) {
    endpoint_ = std::move(endpoint);
    metrics_endpoint_ = std::move(metrics);
  }

  void CreatePool(const std::string& name, ByteCount size, transport::HugePages huge_pages,
                  PoolStore::Done done);
  /// Takes the place of what an engine that has gone had imported under that name.
  void ImportPool(PoolImport import, PoolStore::Done done);
  /// kFailedPrecondition, IN_USE; kNotFound, POOL_NOT_FOUND.
  absl::Status ReleasePool(const std::string& name);

  /// See agent.proto. Answers when the first claim was answered or failed.
  using RegisterDone = absl::AnyInvocable<void(absl::StatusOr<AgentRef>)>;
  void RegisterEngine(EngineInfo engine, RegisterDone done);

  /// Takes no new rooms from now on.
  void StartDrain();
  /// Gives the cell up.
  void Deregister(absl::Duration timeout, absl::AnyInvocable<void()> done);
  /// Ends the session and gives up pools; the process ends.
  void Shutdown();

  AgentState state() const;
  bool session_open() const { return session_ != nullptr; }
  const LeaseKeeper& lease() const { return keeper_; }

  // EnginePort, EngineStreamHandler
  void Send(EngineEvent event) override;
  void OnFrame(const std::shared_ptr<EngineStream>& stream, EngineFrame frame) override;
  void OnStreamEnded(const std::shared_ptr<EngineStream>& stream, const absl::Status& why) override;

 private:
  void OnLeaseHeld(Epoch epoch) override;
  void OnLeaseLost(const absl::Status& why) override;
  void OnSuperseded(const absl::Status& why) override;

  absl::Status OpenNow(const std::shared_ptr<EngineStream>& stream, const OpenSession& open);
  void FinishOpen();
  void Run(ParsedCommand command);
  void EndSession(const absl::Status& why, bool flush);
  void TellGone();
  void Put(agent_pb::AgentEvent event);
  void TellState(const absl::Status& why);
  absl::Status CheckNewEngine() const;
  void Install(EngineInfo engine);
  void AnswerRegistrations(const absl::Status& status);
  void LogFailure(const RoomEvent& event);
  void Uninstall(const absl::Status& why);
  /// Starts the grace time anew: without a session by then, the engine has gone.
  void AwaitSession();
  PoolStore::Done WhenPoolIsThere(PoolStore::Done done);
  void OnGraceOver();

  const Options options_;
  Parts parts_;
  HostPort endpoint_;
  std::optional<HostPort> metrics_endpoint_;
  LeaseKeeper keeper_;
  AgentCore* core_ = nullptr;
  std::function<void()> on_change_;
  std::shared_ptr<EngineStream> session_;  // shared with the call behind it
  std::shared_ptr<EngineStream> opening_;  // asked to open, waits for the last rooms to drain
  std::string client_;                     // who opened it
  bool had_session_ = false;               // since the pools were made
  std::vector<RegisterDone> registering_;  // wait for the first claim
  absl::Status gone_;                      // of a session that ended: the core is to be told
  bool draining_ = false;
  LoopTimer grace_timer_;
  LogRateLimit failure_log_{absl::Milliseconds(200), 20};
};

}  // namespace pageferry::agent
