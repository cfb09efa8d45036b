#pragma once

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/ids.h"
#include "services/bootstrap/edge.h"
#include "services/bootstrap/watch_hub.h"

namespace pageferry::bootstrap {

/// One WatchEngines stream. It sends bytes that the hub serialised for all.
///
///   sync with the store -> open at the hub
///   news -> take from the hub -> Write -> OnWriteDone -> take what has come since …
///
/// until cancelled, stopped, too slow or refused; then Finish, once, and OnDone lets go of the last
/// reference. Only what is being written, and the rest of the same take, is held for a watcher.
///
/// Events set flags and call Pump; one thread at a time is in it and calls gRPC, with no lock held,
/// so that nothing is started after Finish. Finish may overtake a write that does not end.
class WatchReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public WatchHub::Watcher,
                           public std::enable_shared_from_this<WatchReactor> {
 public:
  /// A reactor that owns itself until OnDone. An error ends it at once.
  static WatchReactor* Start(const EdgeContext& edge, grpc::CallbackServerContext& context,
                             absl::StatusOr<WatchQuery> query);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void OnNews() override;
  void OnTick(MonotonicTime now) override;
  void OnStop() override;

 private:
  /// Keeps gRPC's call object; it can then be cancelled at any time.
  class CallReference {
   public:
    explicit CallReference(grpc_call* call) : call_(call) { grpc_call_ref(call_); }
    CallReference(const CallReference& other) : CallReference(other.call_) {}
    CallReference& operator=(const CallReference&) = delete;
    ~CallReference() { grpc_call_unref(call_); }
    void Cancel() const { grpc_call_cancel(call_, nullptr); }

   private:
    grpc_call* const call_;
  };
  enum class Step { kNone, kTake, kWrite, kFinish };

  WatchReactor(const EdgeContext& edge, grpc::CallbackServerContext& context);

  void Open(const WatchQuery& query);
  void Pump();
  Step NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Take();
  void End(absl::Status status);

  const EdgeContext& edge_;
  std::shared_ptr<WatchReactor> self_;  // shared with events that are on their way
  WatchHub::Cursor cursor_;             // used in Pump alone, like the next two
  grpc::ByteBuffer buffer_;
  const absl::Duration progress_interval_;

  absl::Mutex mutex_;
  std::optional<CallReference> call_ ABSL_GUARDED_BY(mutex_);
  std::deque<WatchMessage> outbox_ ABSL_GUARDED_BY(mutex_);  // parts of one take
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool open_ ABSL_GUARDED_BY(mutex_) = false;  // the cursor may be used
  bool news_ ABSL_GUARDED_BY(mutex_) = true;
  bool progress_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  /// When the last write, or Finish, was started.
  MonotonicTime since_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pageferry::bootstrap
