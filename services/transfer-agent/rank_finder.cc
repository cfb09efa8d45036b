#include "services/transfer-agent/rank_finder.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/common/error.h"
#include "libs/common/host_port.h"
#include "services/transfer-agent/engines_match.h"

namespace pageferry::agent {
namespace {

constexpr absl::Duration kMaxLookupWait = absl::Seconds(10);

absl::Status NotFound(const EngineId& engine) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kEngineNotFound,
                   absl::StrCat("engine ", engine.value(), " is not known"),
                   {{"engine_id", engine.value()}});
}

absl::Status NotReady(const EngineRecord& engine) {
  const std::string missing = absl::StrJoin(
      engine.missing, "; ",
      [](std::string* out, const RankCoordinate& rank) { absl::StrAppend(out, ToString(rank)); });
  return MakeError(absl::StatusCode::kUnavailable, Reason::kEngineNotReady,
                   absl::StrCat("engine ", engine.id.value(), " lacks ", engine.missing_count,
                                " ranks: ", missing),
                   {{"engine_id", engine.id.value()}, {"missing", missing}});
}

std::pair<AgentId, Epoch> KeyOf(const AgentRef& agent) { return {agent.id, agent.epoch}; }

}  // namespace

RankFinder::RankFinder(Loop& loop, const OwnSide& own, EngineWatch& watch, BootstrapClient& client,
                       PeerDirectory& directory, PeerDialler& dialler,
                       absl::Duration resolve_timeout)
    : loop_(loop),
      own_(own),
      watch_(watch),
      client_(client),
      directory_(directory),
      dialler_(dialler),
      resolve_timeout_(resolve_timeout),
      timer_(loop),
      alive_(std::make_shared<bool>(true)) {}

RankFinder::~RankFinder() { *alive_ = false; }

void RankFinder::Find(int64_t ticket, const RankQuery& query, MonotonicTime deadline) {
  const auto [found, added] = tickets_.try_emplace(
      ticket, Ticket{.id = ticket, .query = query, .deadline = deadline, .gives_up = deadline});
  if (!added) return;
  by_engine_[query.engine].insert(ticket);
  GiveUpAt(found->second, loop_.Now() + resolve_timeout_);
  Look(found->second);
}

void RankFinder::Cancel(int64_t ticket) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  StopDialling(found->second);
  const auto engine = by_engine_.find(found->second.query.engine);
  engine->second.erase(ticket);
  if (engine->second.empty()) by_engine_.erase(engine);
  deadlines_.erase({found->second.gives_up, ticket});
  tickets_.erase(found);
}

void RankFinder::Answer(int64_t id, absl::StatusOr<PeerId> result) {
  Cancel(id);
  loop_.Post([this, alive = alive_, id, result = std::move(result)] {
    if (*alive) core_->OnPeerFound(id, result, loop_.Now());
  });
}

void RankFinder::Look(Ticket& ticket) {
  const EngineRecord* const engine = watch_.Ask(ticket.query.engine);
  if (engine == nullptr) {
    const absl::Status reachable = watch_.Reachable(ticket.query.engine);
    return Wait(ticket, reachable.ok() ? NotFound(ticket.query.engine) : reachable);
  }
  if (own_.agent.epoch.value() == 0) {
    return Wait(ticket, MakeError(absl::StatusCode::kUnavailable, Reason::kBootstrapUnreachable,
                                  "this agent's own cell is not claimed yet"));
  }
  if (engine->role != Role::kPrefill) {
    return Answer(ticket.id,
                  MakeError(absl::StatusCode::kFailedPrecondition, Reason::kEnginesIncompatible,
                            "the engine that is to send is not a prefill engine",
                            {{"field", "role"}, {"have", "decode"}, {"got", "decode"}}));
  }
  const absl::StatusOr<PrefillRank> rank =
      PrefillCoordinateFor(ticket.query, engine->shape, engine->dp_policy);
  if (!rank.ok()) return Answer(ticket.id, rank.status());
  if (rank->dp_source == DpSource::kDirectory) return LookUp(ticket);
  const auto record = engine->ranks.find(rank->coordinate);
  if (!engine->ready || record == engine->ranks.end()) return Wait(ticket, NotReady(*engine));
  const auto session = directory_.FindDialled(record->second.agent);
  if (session.has_value()) return Answer(ticket.id, *session);
  DialFor(ticket, record->second);
}

void RankFinder::LookAgain(int64_t id) {
  const auto found = tickets_.find(id);
  if (found != tickets_.end()) Look(found->second);
}

void RankFinder::LookUp(Ticket& ticket) {
  if (ticket.looking_up) return;
  ticket.looking_up = true;
  ticket.last_error = MakeError(absl::StatusCode::kNotFound, Reason::kRoomNotPlaced,
                                "the room was not placed at a DP rank");
  // The prefill engine may come to the room late: that takes as long as the room may take.
  GiveUpAt(ticket, ticket.deadline);
  const absl::Duration wait =
      std::clamp(ticket.deadline - loop_.Now(), absl::ZeroDuration(), kMaxLookupWait);
  client_.LookupRoom(name_space_, ticket.query.engine, ticket.query.room, wait,
                     [this, alive = alive_, id = ticket.id](const absl::StatusOr<int64_t>& dp) {
                       if (*alive) OnLookedUp(id, dp);
                     });
}

void RankFinder::OnLookedUp(int64_t id, const absl::StatusOr<int64_t>& dp) {
  const auto found = tickets_.find(id);
  if (found == tickets_.end()) return;
  found->second.looking_up = false;
  if (dp.ok()) {
    found->second.query.dp_rank = static_cast<int32_t>(*dp);
    GiveUpAt(found->second, loop_.Now() + resolve_timeout_);
    return Look(found->second);
  }
  found->second.last_error = dp.status();
  // Not placed yet, or the service is away: again, but not at once.
  loop_.RunAt(loop_.Now() + absl::Milliseconds(200), [this, alive = alive_, id] {
    if (*alive) LookAgain(id);
  });
}

void RankFinder::DialFor(Ticket& ticket, const RankRecord& rank) {
  if (ticket.dialling == rank.agent) return;
  StopDialling(ticket);
  ticket.dialling = rank.agent;
  by_dial_[KeyOf(rank.agent)].insert(ticket.id);
  GiveUpAt(ticket, ticket.deadline);
  ticket.last_error = MakeError(absl::StatusCode::kUnavailable, Reason::kPeerLost,
                                "the prefill agent has not answered");
  dialler_.Want(rank.agent, ToString(rank.endpoint));
}

void RankFinder::StopDialling(Ticket& ticket) {
  if (!ticket.dialling.has_value()) return;
  const AgentRef agent = *ticket.dialling;
  ticket.dialling.reset();
  const auto found = by_dial_.find(KeyOf(agent));
  found->second.erase(ticket.id);
  if (!found->second.empty()) return;
  by_dial_.erase(found);
  dialler_.Drop(agent);
}

void RankFinder::Wait(Ticket& ticket, absl::Status why) {
  if (ticket.dialling.has_value()) GiveUpAt(ticket, loop_.Now() + resolve_timeout_);
  StopDialling(ticket);
  ticket.last_error = std::move(why);
}

void RankFinder::GiveUpAt(Ticket& ticket, MonotonicTime time) {
  deadlines_.erase({ticket.gives_up, ticket.id});
  ticket.gives_up = std::min(time, ticket.deadline);
  deadlines_.emplace(ticket.gives_up, ticket.id);
  ArmTimer();
}

void RankFinder::LookAtAll() {
  std::vector<int64_t> ids;
  ids.reserve(tickets_.size());
  for (const auto& [id, ticket] : tickets_) ids.push_back(id);
  for (const int64_t id : ids) LookAgain(id);
}

void RankFinder::OnEngineChanged(const EngineId& engine) {
  const auto found = by_engine_.find(engine);
  if (found == by_engine_.end()) return;
  const std::vector<int64_t> ids(found->second.begin(), found->second.end());
  for (const int64_t id : ids) LookAgain(id);
}

void RankFinder::OnDialled(const AgentRef& agent, const absl::StatusOr<PeerId>& session,
                           bool final) {
  const auto found = by_dial_.find(KeyOf(agent));
  if (found == by_dial_.end()) return;
  const std::vector<int64_t> ids(found->second.begin(), found->second.end());
  for (const int64_t id : ids) {
    const auto ticket = tickets_.find(id);
    if (ticket == tickets_.end()) continue;
    if (session.ok() || final) {
      Answer(id, session);
    } else {
      ticket->second.last_error = session.status();
    }
  }
}

void RankFinder::ArmTimer() {
  const MonotonicTime next =
      deadlines_.empty() ? MonotonicTime::InfiniteFuture() : deadlines_.begin()->first;
  if (next < timer_.deadline()) timer_.Set(next, [this] { OnTimer(); });
}

void RankFinder::OnTimer() {
  const MonotonicTime now = loop_.Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const int64_t id = deadlines_.begin()->second;
    const absl::Status why = tickets_.at(id).last_error;
    Answer(id, why.ok() ? MakeError(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline,
                                    "no session to the prefill agent in time")
                        : why);
  }
  ArmTimer();
}

}  // namespace pageferry::agent
