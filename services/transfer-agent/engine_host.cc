#include "services/transfer-agent/engine_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/log.h"
#include "libs/common/status.h"
#include "services/transfer-agent/convert_profile.h"

namespace pageferry::agent {
namespace {

LogArea log_area("engine");

constexpr absl::Duration kGiveUpCell = absl::Seconds(2);
// An engine may load its model between its pools and its session.
constexpr absl::Duration kFirstSession = absl::Minutes(10);

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "the agent is draining");
}

absl::Status AlreadyRegistered(absl::string_view what) {
  return MakeError(absl::StatusCode::kAlreadyExists, Reason::kEngineAlreadyRegistered, what);
}

absl::Status EngineLostError(absl::string_view what) {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kEngineLost, what);
}

}  // namespace

EngineHost::EngineHost(Options options, Parts parts)
    : options_(std::move(options)),
      parts_(parts),
      keeper_(parts.loop, parts.bootstrap, *this, options_.backoff),
      grace_timer_(parts.loop) {}

void EngineHost::Bind(AgentCore& core, std::function<void()> on_change) {
  core_ = &core;
  on_change_ = std::move(on_change);
}

AgentState EngineHost::state() const {
  if (keeper_.state() == LeaseKeeper::State::kSuperseded) return AgentState::kSuperseded;
  if (draining_) return AgentState::kDraining;
  if (!parts_.own.registered) return AgentState::kIdle;
  return parts_.own.agent.epoch.value() > 0 ? AgentState::kReady : AgentState::kRegistering;
}

PoolStore::Done EngineHost::WhenPoolIsThere(PoolStore::Done done) {
  return [this, done = std::move(done)](absl::StatusOr<PoolView> view) mutable {
    if (view.ok()) AwaitSession();
    on_change_();
    done(std::move(view));
  };
}

void EngineHost::CreatePool(const std::string& name, ByteCount size,
                            transport::HugePages huge_pages, PoolStore::Done done) {
  if (draining_) return done(Draining());
  parts_.pools.Create(name, size, huge_pages, WhenPoolIsThere(std::move(done)));
}

void EngineHost::ImportPool(PoolImport import, PoolStore::Done done) {
  if (draining_) return done(Draining());
  // For a second try: `Import` consumes its own.
  PoolImport again{.name = import.name,
                   .size = import.size,
                   .data_offset = import.data_offset,
                   .shm_name = import.shm_name,
                   .memory_file = import.memory_file,
                   .read_only = import.read_only,
                   .huge = import.huge};
  parts_.pools.Import(std::move(import), [this, again = std::move(again), done = std::move(done)](
                                             absl::StatusOr<PoolView> view) mutable {
    // An engine that starts anew has new memory, and the old is of no use to anybody.
    const bool replaces = ReasonOf(view.status()) == Reason::kPoolExists && session_ == nullptr &&
                          opening_ == nullptr && parts_.pools.IsImported(again.name);
    if (replaces) {
      if (absl::Status status = ReleasePool(again.name); !status.ok()) return done(status);
      return parts_.pools.Import(std::move(again), WhenPoolIsThere(std::move(done)));
    }
    WhenPoolIsThere(std::move(done))(std::move(view));
  });
}

absl::Status EngineHost::ReleasePool(const std::string& name) {
  const EngineInfo& engine = parts_.own.engine;
  const auto uses = [&](const Buffer& buffer) { return buffer.pool_name == name; };
  bool used = false;
  for (const Entry& entry : engine.profile.entries) used |= uses(entry.pages);
  for (const AuxBuffer& aux : engine.profile.aux) used |= uses(aux.slots);
  for (const StateComponent& state : engine.profile.states) {
    for (const StateEntry& entry : state.entries) used |= uses(entry.items);
  }
  if (used && core_->LiveRooms() > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse,
                     absl::StrCat("rooms that are not drained use pool ", name), {{"by", "rooms"}});
  }
  if (parts_.own.registered && used) {
    if (session_ != nullptr || opening_ != nullptr || !registering_.empty()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse,
                       absl::StrCat("the registered engine uses pool ", name), {{"by", "engine"}});
    }
    // What an engine that died has left, in the way of the next one.
    Uninstall(EngineLostError(absl::StrCat("its pool ", name, " was released")));
    keeper_.Stop(kGiveUpCell, [] {});
  }
  const absl::Status status = parts_.pools.Release(name);
  on_change_();
  return status;
}

absl::Status EngineHost::CheckNewEngine() const {
  if (session_ != nullptr || opening_ != nullptr) {
    return AlreadyRegistered(
        absl::StrCat("engine ", parts_.own.engine.engine_id.value(), " has its session open"));
  }
  if (core_->LiveRooms() > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse,
                     "rooms of the engine before are not drained", {{"by", "rooms"}});
  }
  if (!registering_.empty()) return AlreadyRegistered("another registration is going on");
  return absl::OkStatus();
}

void EngineHost::RegisterEngine(EngineInfo engine, RegisterDone done) {
  if (keeper_.state() == LeaseKeeper::State::kSuperseded) return done(keeper_.last_error());
  if (draining_) return done(Draining());
  if (absl::Status status = parts_.pools.Resolve(engine); !status.ok()) return done(status);
  if (parts_.own.registered && engine == parts_.own.engine) {
    AwaitSession();
    if (registering_.empty()) return done(parts_.own.agent);
    registering_.push_back(std::move(done));
    return;
  }
  if (absl::Status status = CheckNewEngine(); !status.ok()) return done(status);
  registering_.push_back(std::move(done));
  if (!parts_.own.registered) return Install(std::move(engine));
  Uninstall(EngineLostError("another engine registered"));
  // The old cell first: it may be the same one with another profile.
  keeper_.Stop(kGiveUpCell,
               [this, engine = std::move(engine)]() mutable { Install(std::move(engine)); });
}

void EngineHost::Install(EngineInfo engine) {
  if (draining_) return AnswerRegistrations(Draining());
  OwnSide& own = parts_.own;
  const bool prefill = engine.role == Role::kPrefill;
  own.engine = std::move(engine);
  own.agent = {.id = options_.agent, .epoch = Epoch(0)};
  own.regions = parts_.pools.RegionsOf(own.engine);
  own.registered = true;
  parts_.pools.SetSealRegions(own.regions);
  parts_.watch.SetNamespace(own.engine.name_space);
  parts_.finder.SetNamespace(own.engine.name_space);
  parts_.placer.SetEngine(own.engine.name_space, own.engine.engine_id, own.engine.coordinate.dp);
  core_->SetEngine(own.engine, own.agent);
  AwaitSession();
  Log(LogLevel::kInfo, log_area, "engine_registered",
      {{"engine", own.engine.engine_id},
       {"role", prefill ? "prefill" : "decode"},
       {"shape", pageferry::ToString(own.engine.shape)},
       {"coordinate", pageferry::ToString(own.engine.coordinate)}});
  std::vector<std::string> transports;
  transports.reserve(own.policy.allowed.size());
  for (const transport::TransportKind kind : own.policy.allowed) {
    transports.emplace_back(transport::TransportName(kind));
  }
  keeper_.Start({.engine = own.engine,
                 .agent = options_.agent,
                 .incarnation = options_.incarnation,
                 .endpoint = endpoint_,
                 .ttl = options_.lease_ttl,
                 .metrics_endpoint = metrics_endpoint_,
                 .transports = std::move(transports)},
                [this](const absl::Status& first) {
                  const bool refused =
                      !first.ok() && keeper_.state() != LeaseKeeper::State::kClaiming;
                  if (refused && keeper_.state() != LeaseKeeper::State::kSuperseded) {
                    Uninstall(first);
                  }
                  AnswerRegistrations(refused ? first : absl::OkStatus());
                });
  on_change_();
}

void EngineHost::AnswerRegistrations(const absl::Status& status) {
  std::vector<RegisterDone> waiting = std::move(registering_);
  registering_.clear();
  for (RegisterDone& waiter : waiting) {
    waiter(status.ok() ? absl::StatusOr<AgentRef>(parts_.own.agent) : status);
  }
}

void EngineHost::Uninstall(const absl::Status& why) {
  Log(LogLevel::kInfo, log_area, "engine_unregistered",
      {{"engine", parts_.own.engine.engine_id}, {"why", why}});
  parts_.own.registered = false;
  parts_.own.agent.epoch = Epoch(0);
  parts_.dialler.DropAll();
  parts_.directory.CloseAll(why);
  on_change_();
}

void EngineHost::OnLeaseHeld(Epoch epoch) {
  const bool changed = parts_.own.agent.epoch != epoch;
  parts_.own.agent.epoch = epoch;
  core_->SetSelf(parts_.own.agent);
  parts_.finder.LookAtAll();
  if (changed) TellState(absl::OkStatus());
  on_change_();
}

void EngineHost::OnLeaseLost(const absl::Status& why) {
  // Sessions and rooms go on: the agents know each other (I11).
  TellState(why);
  on_change_();
}

void EngineHost::OnSuperseded(const absl::Status& why) {
  core_->StartDrain();
  parts_.own.draining = true;
  parts_.directory.SendGoAway(why);
  TellState(why);
  on_change_();
}

void EngineHost::StartDrain() {
  if (draining_) return;
  draining_ = true;
  parts_.own.draining = true;
  Log(LogLevel::kInfo, log_area, "drain_started", {{"rooms", core_->LiveRooms()}});
  core_->StartDrain();
  parts_.directory.SendGoAway(Draining());
  TellState(absl::OkStatus());
  on_change_();
}

void EngineHost::Deregister(absl::Duration timeout, absl::AnyInvocable<void()> done) {
  keeper_.Stop(timeout, std::move(done));
}

void EngineHost::Shutdown() {
  EndSession(Draining(), true);
  if (opening_ != nullptr) std::exchange(opening_, nullptr)->End(Draining(), true);
  grace_timer_.Clear();
  if (parts_.own.registered) Uninstall(Draining());
  AnswerRegistrations(Draining());
}

void EngineHost::AwaitSession() {
  if (session_ != nullptr || opening_ != nullptr) return;
  const absl::Duration patience =
      had_session_ ? options_.pool_grace : std::max(options_.pool_grace, kFirstSession);
  grace_timer_.Set(parts_.loop.Now() + patience, [this] { OnGraceOver(); });
}

void EngineHost::OnGraceOver() {
  if (session_ != nullptr || opening_ != nullptr || !registering_.empty()) return;
  const absl::Status gone = EngineLostError("the engine did not come back within the grace time");
  core_->OnEngineGone(gone, parts_.loop.Now());
  if (core_->LiveRooms() > 0) {
    // Pages that somebody may still read stay, however long that takes.
    grace_timer_.Set(parts_.loop.Now() + absl::Seconds(1), [this] { OnGraceOver(); });
    return;
  }
  if (parts_.own.registered) {
    Uninstall(gone);
    keeper_.Stop(kGiveUpCell, [] {});
  }
  had_session_ = false;
  parts_.pools.ReleaseAll();
  on_change_();
}

}  // namespace pageferry::agent
