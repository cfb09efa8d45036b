#include "services/transfer-agent/lease_keeper.h"

#include <algorithm>
#include <utility>

#include "libs/common/error.h"
#include "libs/common/log.h"

namespace pageferry::agent {
namespace {

LogArea log_area("lease");

constexpr absl::Duration kClaimTimeout = absl::Seconds(2);

}  // namespace

LeaseKeeper::LeaseKeeper(Loop& loop, BootstrapClient& client, Listener& listener,
                         const Backoff::Options& backoff)
    : loop_(loop),
      client_(client),
      listener_(listener),
      backoff_(backoff, RandomSeed()),
      timer_(loop),
      alive_(std::make_shared<bool>(true)) {}

LeaseKeeper::~LeaseKeeper() { *alive_ = false; }

void LeaseKeeper::Start(const Registration& registration,
                        absl::AnyInvocable<void(const absl::Status&)> first) {
  if (state_ == State::kSuperseded) {
    loop_.Post([first = std::move(first), why = last_error_]() mutable { first(why); });
    return;
  }
  const Epoch last = registration_.last_epoch;
  const bool same_cell = registration_.engine.name_space == registration.engine.name_space &&
                         registration_.engine.engine_id == registration.engine.engine_id &&
                         registration_.engine.coordinate == registration.engine.coordinate;
  ++round_;
  registration_ = registration;
  registration_.last_epoch = same_cell ? last : Epoch(0);
  first_ = std::move(first);
  keep_alive_.reset();
  backoff_.Reset();
  state_ = State::kClaiming;
  TryClaim();
}

void LeaseKeeper::Stop(absl::Duration timeout, absl::AnyInvocable<void()> done) {
  ++round_;
  timer_.Clear();
  keep_alive_.reset();
  const bool held = lease_.value() != 0 && state_ != State::kSuperseded;
  if (state_ != State::kSuperseded) state_ = State::kIdle;
  const LeaseId lease = std::exchange(lease_, LeaseId(0));
  if (!held) return loop_.Post(std::move(done));
  client_.Deregister(lease, timeout, [done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) Log(LogLevel::kWarning, log_area, "deregister_failed", {{"why", status}});
    done();
  });
}

void LeaseKeeper::TryClaim() {
  client_.Register(registration_, kClaimTimeout,
                   [this, alive = alive_, round = round_](absl::StatusOr<Claim> claim) {
                     if (*alive && round == round_) OnClaim(std::move(claim));
                   });
}

void LeaseKeeper::OnClaim(absl::StatusOr<Claim> claim) {
  auto first = std::exchange(first_, nullptr);
  if (claim.ok()) {
    state_ = State::kHeld;
    lease_ = claim->lease;
    ttl_ = std::clamp(claim->ttl, absl::Milliseconds(100), absl::Minutes(10));
    registration_.last_epoch = std::max(registration_.last_epoch, claim->epoch);
    lapses_ = loop_.Now() + ttl_;
    last_error_ = absl::OkStatus();
    backoff_.Reset();
    Log(LogLevel::kInfo, log_area, "lease_granted",
        {{"engine", registration_.engine.engine_id},
         {"coordinate", pageferry::ToString(registration_.engine.coordinate)},
         {"epoch", claim->epoch},
         {"ttl_seconds", ttl_}});
    timer_.Set(loop_.Now() + ttl_ / 3, [this] { Renew(); });
    listener_.OnLeaseHeld(claim->epoch);
    if (first) first(absl::OkStatus());
    return;
  }
  const absl::Status why = claim.status();
  last_error_ = why;
  if (ReasonOf(why) == Reason::kSuperseded) {
    Supersede(why);
    if (first) first(why);
    return;
  }
  const bool unreachable = IsUnreachable(why) && ReasonOf(why) == Reason::kUnspecified;
  if (unreachable) {
    last_error_ = MakeError(
        absl::StatusCode::kUnavailable, Reason::kBootstrapUnreachable,
        std::string("the bootstrap service cannot be reached: ") + std::string(why.message()));
  }
  Log(LogLevel::kWarning, log_area, "claim_failed", {{"why", last_error_}});
  if (first && !IsUnreachable(why)) {
    // The engine is told and decides; without it nobody would ever look.
    state_ = State::kIdle;
    ++round_;
    return first(why);
  }
  timer_.Set(loop_.Now() + backoff_.Next(), [this] { TryClaim(); });
  listener_.OnLeaseLost(last_error_);
  if (first) first(last_error_);
}

void LeaseKeeper::Renew() {
  if (state_ != State::kHeld) return;
  if (loop_.Now() >= lapses_) {
    return Lose(MakeError(absl::StatusCode::kUnavailable, Reason::kBootstrapUnreachable,
                          "the lease was not renewed in time"));
  }
  if (keep_alive_ == nullptr) {
    keep_alive_ = client_.OpenKeepAlive(
        [this](const std::vector<Renewal>& renewals) { OnRenewals(renewals); },
        [this](const absl::Status& why) {
          Log(LogLevel::kVerbose, log_area, "keep_alive_ended", {{"why", why}});
          keep_alive_.reset();
        });
  }
  keep_alive_->Renew(lease_);
  timer_.Set(std::min(loop_.Now() + ttl_ / 3, lapses_), [this] { Renew(); });
}

void LeaseKeeper::OnRenewals(const std::vector<Renewal>& renewals) {
  for (const Renewal& renewal : renewals) {
    if (renewal.lease != lease_ || state_ != State::kHeld) continue;
    if (renewal.lost.ok()) {
      ttl_ = std::clamp(renewal.ttl, absl::Milliseconds(100), absl::Minutes(10));
      lapses_ = loop_.Now() + ttl_;
    } else if (ReasonOf(renewal.lost) == Reason::kSuperseded) {
      return Supersede(renewal.lost);
    } else {
      return Lose(renewal.lost);
    }
  }
}

void LeaseKeeper::Lose(const absl::Status& why) {
  Log(LogLevel::kWarning, log_area, "lease_lost", {{"why", why}});
  state_ = State::kClaiming;
  last_error_ = why;
  // Everybody lost theirs at the same moment: do not come back at the same moment.
  timer_.Set(loop_.Now() + backoff_.Next(), [this] { TryClaim(); });
  listener_.OnLeaseLost(why);
}

void LeaseKeeper::Supersede(const absl::Status& why) {
  Log(LogLevel::kError, log_area, "superseded", {{"why", why}});
  state_ = State::kSuperseded;
  last_error_ = why;
  timer_.Clear();
  lease_ = LeaseId(0);
  // Not from here: this may be its callback.
  loop_.Post([stream = std::move(keep_alive_)]() mutable { stream.reset(); });
  listener_.OnSuperseded(why);
}

}  // namespace pageferry::agent
