#include "services/transfer-agent/engine_host.h"

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/log.h"
#include "libs/common/status.h"
#include "services/transfer-agent/convert_profile.h"

namespace pageferry::agent {
namespace {

LogArea log_area("engine");

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "the agent is draining");
}

absl::Status AlreadyRegistered(absl::string_view what) {
  return MakeError(absl::StatusCode::kAlreadyExists, Reason::kEngineAlreadyRegistered, what);
}

absl::Status EngineLostError(absl::string_view what) {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kEngineLost, what);
}

/// Region ids are the agent's own: the same registration may come before and after a pool's life.
bool SameContent(EngineInfo a, EngineInfo b) { return a == b; }

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

void EngineHost::CreatePool(const std::string& name, ByteCount size,
                            absl::AnyInvocable<void(absl::StatusOr<PoolView>)> done) {
  if (draining_) return done(Draining());
  if (grace_timer_.deadline() != MonotonicTime::InfiniteFuture()) ArmGrace();
  const bool unused = session_ == nullptr && core_->LiveRooms() == 0;
  parts_.pools.Create(name, size, unused,
                      [this, done = std::move(done)](absl::StatusOr<PoolView> view) mutable {
                        on_change_();
                        done(std::move(view));
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
  if (parts_.own.registered && used) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse,
                     absl::StrCat("the registered engine uses pool ", name), {{"by", "engine"}});
  }
  if (used && core_->LiveRooms() > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse,
                     absl::StrCat("rooms that are not drained use pool ", name), {{"by", "rooms"}});
  }
  const absl::Status status = parts_.pools.Release(name);
  on_change_();
  return status;
}

absl::Status EngineHost::CheckNewEngine() const {
  if (session_ != nullptr) {
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
  if (grace_timer_.deadline() != MonotonicTime::InfiniteFuture()) ArmGrace();
  if (parts_.own.registered && SameContent(engine, parts_.own.engine)) {
    if (registering_.empty()) return done(parts_.own.agent);
    registering_.push_back(std::move(done));
    return;
  }
  if (absl::Status status = CheckNewEngine(); !status.ok()) return done(status);
  registering_.push_back(std::move(done));
  if (!parts_.own.registered) return Install(std::move(engine));
  Uninstall(EngineLostError("another engine registered"));
  // The old cell first: it may be the same one with another profile.
  keeper_.Stop(absl::Seconds(2),
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

void EngineHost::OnFrame(const std::shared_ptr<EngineStream>& stream, EngineFrame frame) {
  absl::Status status = frame.error;
  const bool opens = status.ok() && std::holds_alternative<OpenSession>(frame.commands.front());
  if (status.ok() && stream != session_) {
    status = opens && frame.commands.size() == 1
                 ? OpenNow(stream, std::get<OpenSession>(frame.commands.front()))
                 : MakeError(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder,
                             "the first frame has exactly one command, open");
    if (!status.ok()) return stream->End(status, true);
    return stream->ReadNext();
  }
  for (auto& command : frame.commands) {
    if (!status.ok()) break;
    if (auto* const parsed = std::get_if<ParsedCommand>(&command)) {
      Run(std::move(*parsed));
    } else {
      status = MakeError(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder,
                         "the session is open already");
    }
  }
  if (!status.ok()) {
    if (stream == session_) return EndSession(status, true);
    return stream->End(status, true);
  }
  stream->ReadNext();
}

absl::Status EngineHost::OpenNow(const std::shared_ptr<EngineStream>& stream,
                                 const OpenSession& open) {
  if (!parts_.own.registered) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kEngineNotRegistered,
                     "no engine is registered");
  }
  if (open.engine_id != parts_.own.engine.engine_id.value()) {
    return InvalidField("open.engine_id", absl::string_view(open.engine_id).substr(0, 128),
                        parts_.own.engine.engine_id.value());
  }
  if (session_ != nullptr) return AlreadyRegistered("another session is open");
  TellGone();
  session_ = stream;
  grace_timer_.Clear();
  core_->OnEngineUp();
  Log(LogLevel::kInfo, log_area, "session_opened",
      {{"engine", parts_.own.engine.engine_id}, {"client", open.client}});
  agent_pb::AgentEvent event;
  ToProto(parts_.own.agent, *event.mutable_opened()->mutable_agent());
  event.mutable_opened()->set_state(static_cast<agent_pb::AgentState>(state()));
  Put(std::move(event));
  on_change_();
  return absl::OkStatus();
}

void EngineHost::Run(ParsedCommand command) {
  if (!command.command.ok()) {
    parts_.probe.CommandWasRefused(ReasonOf(command.command.status()));
    return Send(CommandRefused{
        .room = command.room, .command = command.name, .error = command.command.status()});
  }
  const auto* const send = std::get_if<OpenSend>(&*command.command);
  if (send != nullptr && parts_.own.engine.dp_by_directory && parts_.own.engine.shape.dp > 1) {
    parts_.placer.Place(send->room.id);
  }
  core_->OnEngineCommand(*std::move(command.command), parts_.loop.Now());
}

void EngineHost::OnStreamEnded(const std::shared_ptr<EngineStream>& stream,
                               const absl::Status& why) {
  if (stream != session_) return stream->End(absl::OkStatus(), false);
  EndSession(why, true);
}

void EngineHost::EndSession(const absl::Status& why, bool flush) {
  if (session_ == nullptr) return;
  Log(LogLevel::kInfo, log_area, "session_closed",
      {{"engine", parts_.own.engine.engine_id}, {"why", why}});
  const std::shared_ptr<EngineStream> stream = std::move(session_);
  session_ = nullptr;
  stream->End(why, flush);
  ArmGrace();
  gone_ = EngineLostError(why.ok() ? "the engine's session ended"
                                   : absl::StrCat("the engine's session ended: ", why.message()));
  // This may have begun inside the core: let it return first.
  parts_.loop.Post([this] { TellGone(); });
}

void EngineHost::TellGone() {
  if (gone_.ok()) return;
  core_->OnEngineGone(std::exchange(gone_, absl::OkStatus()), parts_.loop.Now());
  on_change_();
}

void EngineHost::Send(EngineEvent event) {
  const auto* const room = std::get_if<RoomEvent>(&event);
  if (room != nullptr && room->state == RoomState::kFailed && !room->drained) LogFailure(*room);
  if (session_ == nullptr) return;
  agent_pb::AgentEvent proto;
  ToProto(event, proto);
  Put(std::move(proto));
}

void EngineHost::LogFailure(const RoomEvent& event) {
  const std::optional<int64_t> suppressed = failure_log_.Admit(parts_.loop.Now());
  if (!suppressed.has_value()) return;
  Log(LogLevel::kInfo, log_area, "room_failed",
      {{"room", event.room.id},
       {"attempt", event.room.attempt},
       {"why", event.error},
       {"suppressed", *suppressed}});
}

void EngineHost::Put(agent_pb::AgentEvent event) {
  if (session_ == nullptr || session_->Send(std::move(event))) return;
  EndSession(MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                       "the engine reads too slowly: its outbox is full", {{"limit", "outbox"}}),
             false);
}

void EngineHost::TellState(const absl::Status& why) {
  agent_pb::AgentEvent event;
  agent_pb::AgentStateEvent& out = *event.mutable_agent_state();
  out.set_state(static_cast<agent_pb::AgentState>(state()));
  ToProto(parts_.own.agent, *out.mutable_agent());
  if (!why.ok()) ToErrorDetail(why, *out.mutable_error());
  Put(std::move(event));
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
  grace_timer_.Clear();
  if (parts_.own.registered) Uninstall(Draining());
  AnswerRegistrations(Draining());
}

void EngineHost::ArmGrace() {
  grace_timer_.Set(parts_.loop.Now() + options_.pool_grace, [this] { OnGraceOver(); });
}

void EngineHost::OnGraceOver() {
  if (session_ != nullptr || !registering_.empty()) return;
  if (core_->LiveRooms() > 0) {
    // Pages that somebody may still read stay, however long that takes.
    grace_timer_.Set(parts_.loop.Now() + absl::Seconds(1), [this] { OnGraceOver(); });
    return;
  }
  if (parts_.own.registered) {
    Uninstall(EngineLostError("the engine did not come back within the grace time"));
    keeper_.Stop(absl::Seconds(2), [] {});
  }
  parts_.pools.ReleaseAll();
  on_change_();
}

}  // namespace pageferry::agent
