#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "pageferry/bootstrap/v1/bootstrap.pb.h"
#include "services/bootstrap/edge.h"
#include "services/bootstrap/stream_set.h"

namespace pageferry::bootstrap {

/// One KeepAlive stream: a request, its answer, the next request.
///
///   Read -> OnReadDone -> store -> Write -> OnWriteDone -> Read …    until half-close, error,
///                                                                    cancellation or OnStop
///   then Finish, once, and OnDone lets go of the last reference.
///
/// Events set flags and call Pump; one thread at a time is in it and calls gRPC, with no lock held,
/// so that nothing is started after Finish.
class KeepAliveReactor final
    : public grpc::ServerBidiReactor<v1::KeepAliveRequest, v1::KeepAliveResponse>,
      public std::enable_shared_from_this<KeepAliveReactor> {
 public:
  using Streams = StreamSet<KeepAliveReactor>;

  /// A reactor that owns itself until OnDone. `status`: an error ends it at once.
  static KeepAliveReactor* Start(const EdgeContext& edge, Streams& streams, absl::Status status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnStop();

 private:
  enum class Step { kNone, kRead, kHandle, kWrite, kFinish };
  enum class Next { kRead, kHandle, kWrite, kEvent };

  KeepAliveReactor(const EdgeContext& edge, Streams& streams) : edge_(edge), streams_(streams) {}

  void Pump();
  Step NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Handle();
  void Set(Next next);
  void End(absl::Status status);

  const EdgeContext& edge_;
  Streams& streams_;
  std::shared_ptr<KeepAliveReactor> self_;  // shared with events that are on their way
  v1::KeepAliveRequest request_;            // of the step in progress alone, like the next
  v1::KeepAliveResponse response_;

  absl::Mutex mutex_;
  Next next_ ABSL_GUARDED_BY(mutex_) = Next::kRead;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusCode code_ ABSL_GUARDED_BY(mutex_) = absl::StatusCode::kOk;
};

}  // namespace pageferry::bootstrap
