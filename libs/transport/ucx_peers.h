#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "libs/transport/own_regions.h"
#include "libs/transport/pull_source.h"
#include "libs/transport/pull_target.h"
#include "libs/transport/pull_wire.h"
#include "libs/transport/ucx_endpoint.h"
#include "libs/transport/ucx_worker.h"

/// The two ends of a pull over UCX. All on the worker's thread; made and closed from UcxTransport.
namespace pageferry::transport {

/// Tells the worker whether something is going on.
class Activity {
 public:
  explicit Activity(UcxWorker& worker) : worker_(worker) {}
  ~Activity() { Set(false); }
  void Set(bool active) {
    if (std::exchange(active_, active) != active) worker_.AddActive(active ? 1 : -1);
  }

 private:
  UcxWorker& worker_;
  bool active_ = false;
};

/// The end that receives.
class UcxTarget {
 public:
  using Ready = absl::AnyInvocable<void(absl::Status) &&>;

  UcxTarget(UcxWorker& worker, const PullTarget::Options& options, wire::Token token,
            uint64_t nonce);

  /// Dials and shows the token; `ready` runs once: with OK when the other side has answered.
  void Open(const std::string& address, Ready ready);
  void OnHailReply();
  /// Fails, unless the other side has answered.
  void GiveUp(const absl::Status& why) {
    if (ready_) Fail(why);
  }
  /// Ends everything; `closed` runs when UCX has nothing of it.
  void Close(const absl::Status& why, absl::AnyInvocable<void()> closed);
  /// The same without waiting, after which only `Close` is of use.
  void Fail(const absl::Status& why);

  PullTarget& pulls() { return pulls_; }
  uint64_t nonce() const { return nonce_; }
  /// To be called after anything that was done to `pulls`.
  void Update() { activity_.Set(!pulls_.idle()); }

 private:
  UcxWorker& worker_;
  const wire::Token token_;
  const uint64_t nonce_;
  Activity activity_;
  std::unique_ptr<UcxEndpoint> endpoint_;
  Ready ready_;
  PullTarget pulls_;
};

/// The end that sends.
class UcxSource {
 public:
  UcxSource(UcxWorker& worker, OwnRegions& regions, int64_t max_in_flight);

  absl::Status Open(const std::string& address);
  /// The target's number came with its first message.
  void OnHail(uint64_t nonce);
  /// An error: the peer broke the protocol.
  absl::Status OnRead(const wire::Read& read, absl::string_view ranges);
  void Close(absl::AnyInvocable<void()> closed);

 private:
  UcxWorker& worker_;
  OwnRegions& regions_;
  const int64_t max_in_flight_;
  Activity activity_;
  std::unique_ptr<UcxEndpoint> endpoint_;
  std::unique_ptr<PullSource> pulls_;
};

}  // namespace pageferry::transport
