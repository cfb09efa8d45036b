#include "services/bootstrap/watch_hub.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::bootstrap {
WatchHub::WatchHub(const Options& options, TableVersion version, std::function<bool()> warming_up,
                   const Clock& clock, Scheduler& scheduler)
    : options_(options),
      warming_up_(std::move(warming_up)),
      clock_(clock),
      scheduler_(scheduler),
      gate_(std::make_shared<Gate>()),
      index_(version, options.max_removed) {
  ScheduleTick();
}

WatchHub::~WatchHub() {
  gate_->Close();
  (void)gate_->WaitUntilIdle(MonotonicTime::InfiniteFuture());
}

template <class Function>
void WatchHub::Schedule(MonotonicTime at, Function function) {
  scheduler_.RunAt(at, [gate = gate_, function = std::move(function)] {
    if (const auto holder = gate->Enter()) function();
  });
}

void WatchHub::ScheduleTick() {
  Schedule(clock_.Now() + options_.tick, [this] {
    const MonotonicTime now = clock_.Now();
    const bool warming_up = warming_up_();
    {
      const absl::MutexLock lock(&mutex_);
      NoteWarmUp(warming_up);
    }
    for (const auto& watcher : Watchers()) watcher->OnTick(now);
    ScheduleTick();
  });
}

std::vector<std::shared_ptr<WatchHub::Watcher>> WatchHub::Watchers() const {
  std::vector<std::shared_ptr<Watcher>> watchers;
  const absl::MutexLock lock(&mutex_);
  watchers.reserve(watchers_.size());
  for (const auto& [key, watcher] : watchers_) watchers.push_back(watcher);
  return watchers;
}

size_t WatchHub::watcher_count() const {
  const absl::MutexLock lock(&mutex_);
  return watchers_.size();
}

void WatchHub::OnUpdate(const TableUpdate& update) {
  std::vector<ChangeIndex::Change> changes;
  changes.reserve(update.changes.size());
  for (const TableUpdate::Change& change : update.changes) {
    changes.push_back({.key = change.key,
                       .removed = change.view == nullptr,
                       .engine_level = change.engine_level});
  }
  {
    const absl::MutexLock lock(&mutex_);
    for (const TableUpdate::Change& change : update.changes) {
      if (change.view == nullptr) {
        engines_.erase(change.key);
      } else {
        engines_[change.key] = std::make_shared<EncodedEngine>(change.view);
      }
    }
    index_.Apply(update.version, changes);
    if (fan_out_pending_) return;
    fan_out_pending_ = true;
  }
  Schedule(clock_.Now(), [this] {
    {
      const absl::MutexLock lock(&mutex_);
      fan_out_pending_ = false;
    }
    for (const auto& watcher : Watchers()) watcher->OnNews();
  });
}

absl::StatusOr<WatchHub::Cursor> WatchHub::Open(const WatchQuery& query) const {
  Cursor cursor;
  cursor.name_space_ = query.name_space;
  cursor.engines_.insert(query.engines.begin(), query.engines.end());
  cursor.with_ranks_ = query.with_ranks;
  cursor.position_ = query.resume;
  const bool warming_up = warming_up_();
  const absl::MutexLock lock(&mutex_);
  NoteWarmUp(warming_up);
  cursor.needs_snapshot_ = query.resume == TableVersion();
  if (cursor.needs_snapshot_) return cursor;
  if (index_.CanResume(query.resume) && query.resume <= index_.version()) {
    // Who resumes from a time when engines were only coming back has to hear when that was over.
    cursor.was_warming_up_ = warming_up;
    cursor.needs_snapshot_ = !warming_up && query.resume <= warm_up_end_;
    return cursor;
  }
  return MakeError(absl::StatusCode::kOutOfRange, Reason::kCompacted,
                   absl::StrCat("version ", query.resume.value(), " is not kept"));
}

void WatchHub::NoteWarmUp(bool warming_up) const {
  if (warming_up) {
    warming_up_seen_ = true;
  } else if (std::exchange(warming_up_seen_, false)) {
    warm_up_end_ = index_.version();
  }
}

absl::Status WatchHub::Add(std::shared_ptr<Watcher> watcher) {
  const absl::MutexLock lock(&mutex_);
  if (stopped_) {
    return MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "the service is draining");
  }
  if (watchers_.size() >= options_.max_watchers) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                     "too many watchers",
                     {{"limit", "max_watchers"}, {"value", absl::StrCat(options_.max_watchers)}});
  }
  const Watcher* const key = watcher.get();
  watchers_.emplace(key, std::move(watcher));
  return absl::OkStatus();
}

void WatchHub::Remove(const Watcher* watcher) {
  std::shared_ptr<Watcher> last;  // shared: destroyed outside the lock
  const absl::MutexLock lock(&mutex_);
  const auto found = watchers_.find(watcher);
  if (found == watchers_.end()) return;
  last = std::move(found->second);
  watchers_.erase(found);
}

bool WatchHub::Matches(const Cursor& cursor, const EngineKey& key) {
  if (cursor.name_space_ && *cursor.name_space_ != key.name_space) return false;
  return cursor.engines_.empty() || cursor.engines_.contains(key.engine);
}

WatchHub::News WatchHub::Collect(Cursor& cursor) const {
  const bool warming_up = warming_up_();
  const absl::MutexLock lock(&mutex_);
  NoteWarmUp(warming_up);
  News news{.before = cursor.position_, .version = index_.version(), .warming_up = warming_up};
  if (cursor.needs_snapshot_ || (cursor.was_warming_up_ && !warming_up)) {
    news.snapshot = true;
    auto at =
        cursor.name_space_ ? engines_.lower_bound({*cursor.name_space_, {}}) : engines_.begin();
    for (; at != engines_.end(); ++at) {
      if (cursor.name_space_ && at->first.name_space != *cursor.name_space_) break;
      if (Matches(cursor, at->first)) news.engines.push_back(at->second);
    }
    cursor.needs_snapshot_ = false;
    cursor.was_warming_up_ = warming_up;
  } else {
    const auto visit = [&](const EngineKey& key, bool removed)
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                             if (!Matches(cursor, key)) return;
                             if (removed) {
                               news.removed.push_back(key);
                             } else {
                               news.engines.push_back(engines_.at(key));
                             }
                           };
    index_.VisitSince(cursor.position_, !cursor.with_ranks_, visit);
  }
  cursor.position_ = news.version;
  return news;
}

absl::StatusOr<std::vector<WatchMessage>> WatchHub::Take(Cursor& cursor) const {
  const News news = Collect(cursor);
  std::vector<WatchMessage> messages;
  if (!news.snapshot && news.engines.empty() && news.removed.empty()) return messages;
  const size_t allowed = options_.max_message_bytes;
  std::vector<SharedBytes> fields;
  size_t size = 0;
  for (const auto& engine : news.engines) {
    SharedBytes field = engine->Field(cursor.with_ranks_);
    if (field->size() > allowed) return TooLargeToSend(field->size(), allowed);
    if (size + field->size() > allowed) {
      if (news.snapshot) return TooLargeToSend(size + field->size(), allowed);
      // Whoever resumes from a part must get the rest again: it has the version before.
      messages.push_back(MakeChange(news.before, std::exchange(fields, {}), {}));
      size = 0;
    }
    size += field->size();
    fields.push_back(std::move(field));
  }
  size_t removed_size = 0;
  for (const EngineKey& key : news.removed) {
    constexpr size_t kOverhead = 16;  // tags and lengths
    removed_size += key.name_space.value().size() + key.engine.value().size() + kOverhead;
  }
  if (size + removed_size > allowed && !fields.empty()) {
    messages.push_back(MakeChange(news.before, std::exchange(fields, {}), {}));
  }
  messages.push_back(news.snapshot ? MakeSnapshot(news.version, std::move(fields), news.warming_up)
                                   : MakeChange(news.version, std::move(fields), news.removed));
  return messages;
}

void WatchHub::Stop() {
  {
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  for (const auto& watcher : Watchers()) watcher->OnStop();
}

}  // namespace pageferry::bootstrap
