#include "services/transfer-agent/engine_watch.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/log.h"

namespace pageferry::agent {
namespace {

LogArea log_area("watch");

}  // namespace

EngineWatch::EngineWatch(Loop& loop, BootstrapClient& client, const Backoff::Options& backoff)
    : loop_(loop), client_(client), backoff_(backoff, RandomSeed()), timer_(loop) {}

void EngineWatch::SetNamespace(const NamespaceName& name_space) {
  if (name_space == name_space_) return;
  name_space_ = name_space;
  table_ = EngineTable();
  for (auto& [id, asked] : asked_) asked.answered = false;
  if (!asked_.empty()) RestartSoon();
}

const EngineRecord* EngineWatch::Ask(const EngineId& engine) {
  const auto [found, added] = asked_.try_emplace(engine);
  found->second.last = loop_.Now();
  if (added) {
    if (asked_.size() > kMaxEngines) EvictOldest();
    RestartSoon();
  }
  return table_.Find(engine);
}

absl::Status EngineWatch::Reachable(const EngineId& engine) const {
  const auto found = asked_.find(engine);
  if (stream_ != nullptr && found != asked_.end() && found->second.answered) {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kUnavailable, Reason::kBootstrapUnreachable,
                   absl::StrCat("the bootstrap service cannot be reached", error_.ok() ? "" : ": ",
                                error_.message()));
}

void EngineWatch::Stop() {
  stopped_ = true;
  stream_.reset();
  timer_.Clear();
}

void EngineWatch::RestartSoon() {
  // A moment, so that engines asked for together are one start.
  if (!stopped_) {
    timer_.Set(loop_.Now() + absl::Milliseconds(5), [this] { Restart(TableVersion(0)); });
  }
}

void EngineWatch::Restart(TableVersion version) {
  std::vector<EngineId> engines;
  engines.reserve(asked_.size());
  for (auto& [id, asked] : asked_) {
    engines.push_back(id);
    asked.sent = true;
  }
  stream_ = client_.OpenWatch(
      name_space_, engines, version, [this](TableEvent event) { OnEvent(std::move(event)); },
      [this](const absl::Status& why) { OnEnd(why); });
}

void EngineWatch::OnEvent(TableEvent event) {
  const bool snapshot = std::holds_alternative<TableSnapshot>(event.what);
  if (!error_.ok()) Log(LogLevel::kInfo, log_area, "watch_back", {{"version", event.version}});
  const bool was_away = !error_.ok();
  error_ = absl::OkStatus();
  backoff_.Reset();
  const std::vector<EngineId> changed = table_.Apply(std::move(event));
  bool told_all = false;
  if (snapshot || was_away) {
    // Also to those that wait for an engine that is not there: now that is known.
    for (auto& [id, asked] : asked_) asked.answered = asked.answered || (snapshot && asked.sent);
    std::vector<EngineId> all;
    all.reserve(asked_.size());
    for (const auto& [id, asked] : asked_) all.push_back(id);
    for (const EngineId& id : all) listener_(id);
    told_all = true;
  }
  if (!told_all) {
    for (const EngineId& id : changed) listener_(id);
  }
  if (snapshot && table_.warming_up() && timer_.deadline() == MonotonicTime::InfiniteFuture()) {
    timer_.Set(loop_.Now() + kWarmUpPoll, [this] { Restart(TableVersion(0)); });
  }
}

void EngineWatch::OnEnd(const absl::Status& why) {
  stream_.reset();
  TableVersion resume = table_.version();
  if (ReasonOf(why) == Reason::kCompacted || why.code() == absl::StatusCode::kOutOfRange) {
    resume = TableVersion(0);
  }
  for (const auto& [id, asked] : asked_) {
    if (!asked.answered) resume = TableVersion(0);
  }
  // The snapshot that ends the warm-up comes only to a stream that was there for its begin.
  if (table_.warming_up()) resume = TableVersion(0);
  if (error_.ok()) Log(LogLevel::kWarning, log_area, "watch_lost", {{"why", why}});
  error_ = why.ok() ? absl::UnavailableError("the watch ended") : why;
  if (!stopped_) {
    timer_.Set(loop_.Now() + backoff_.Next(), [this, resume] { Restart(resume); });
  }
}

void EngineWatch::EvictOldest() {
  auto oldest = asked_.begin();
  for (auto it = asked_.begin(); it != asked_.end(); ++it) {
    if (it->second.last < oldest->second.last) oldest = it;
  }
  table_.Forget(oldest->first);
  asked_.erase(oldest);
}

}  // namespace pageferry::agent
