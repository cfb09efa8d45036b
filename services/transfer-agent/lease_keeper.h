#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/common/backoff.h"
#include "libs/common/ids.h"
#include "services/transfer-agent/bootstrap_client.h"
#include "services/transfer-agent/loop.h"

namespace pageferry::agent {

/// Holds this agent's cell at the bootstrap service: claims it, renews the lease each third of its
/// TTL, claims again with jittered backoff after an outage, and stops for good when superseded.
///
///   kIdle --Start--> kClaiming --granted--> kHeld --lost or lapsed--> kClaiming
///                        \------ SUPERSEDED (also from kHeld) ------> kSuperseded
///   any --Stop--> kIdle (deregistered)
///
/// Loop-confined. Borrows loop, client and listener. Never calls the listener inside a call.
class LeaseKeeper {
 public:
  enum class State { kIdle, kClaiming, kHeld, kSuperseded };

  class Listener {
   public:
    virtual ~Listener() = default;
    /// The cell is held with this epoch; also after each new claim.
    virtual void OnLeaseHeld(Epoch epoch) = 0;
    /// A claim or the lease failed; another claim follows.
    virtual void OnLeaseLost(const absl::Status& why) = 0;
    /// A younger agent holds the cell; no claim follows.
    virtual void OnSuperseded(const absl::Status& why) = 0;
  };

  LeaseKeeper(Loop& loop, BootstrapClient& client, Listener& listener,
              const Backoff::Options& backoff);
  ~LeaseKeeper();

  /// Claims. `first` gets what the first try brought: OK, why the service refuses, or
  /// kUnavailable, BOOTSTRAP_UNREACHABLE (tries go on then; after a refusal they do not).
  void Start(const Registration& registration, absl::AnyInvocable<void(const absl::Status&)> first);

  /// Gives the cell up; `done` comes when the service knows or `timeout` is over. A superseded
  /// keeper stays so.
  void Stop(absl::Duration timeout, absl::AnyInvocable<void()> done);

  State state() const { return state_; }
  /// True while the lease lives as far as is known here.
  bool live() const { return state_ == State::kHeld; }
  LeaseId lease() const { return lease_; }
  /// The highest epoch that was granted; 0 before.
  Epoch epoch() const { return registration_.last_epoch; }
  const absl::Status& last_error() const { return last_error_; }

 private:
  void TryClaim();
  void OnClaim(absl::StatusOr<Claim> claim);
  void Renew();
  void OnRenewals(const std::vector<Renewal>& renewals);
  void Lose(const absl::Status& why);
  void Supersede(const absl::Status& why);

  Loop& loop_;
  BootstrapClient& client_;
  Listener& listener_;
  Backoff backoff_;
  State state_ = State::kIdle;
  Registration registration_;
  absl::AnyInvocable<void(const absl::Status&)> first_;
  int64_t round_ = 0;  // of Start: answers of earlier rounds are dropped
  LeaseId lease_;
  absl::Duration ttl_;
  MonotonicTime lapses_ = MonotonicTime::InfinitePast();
  absl::Status last_error_;
  std::unique_ptr<BootstrapClient::KeepAliveStream> keep_alive_;
  LoopTimer timer_;  // the next claim or renewal
  const std::shared_ptr<bool> alive_;
};

}  // namespace pageferry::agent
