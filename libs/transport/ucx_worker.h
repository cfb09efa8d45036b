#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/common/clock.h"

namespace pageferry::transport {

struct UcxWorkerOptions {
  /// Network interface that is listened on and dialled from; no other one is.
  std::string device = "lo";
  /// How long the thread looks for more before it sleeps, while transfers run.
  absl::Duration spin = absl::Microseconds(50);
};

/// One UCX context with one worker, and the one thread that calls ucp_*. Speaks tcp only, eager
/// only: see docs/protocol.md for why.
///
/// The thread sleeps in poll() when nothing goes on. Others hand work to it by `Post`.
class UcxWorker {
 public:
  using Task = absl::AnyInvocable<void()>;

  /// The posting side, which may outlive the worker: then tasks are dropped.
  class Inbox {
   public:
    /// Thread-safe. False when the worker has stopped: the task is gone.
    bool Post(Task task);

   private:
    friend class UcxWorker;
    absl::Mutex mutex_;
    std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
    ucp_worker_h worker_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: stopped
  };

  /// kFailedPrecondition, NO_TRANSPORT: UCX refused, such as for an interface that is not there.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Start(const UcxWorkerOptions& options);
  /// Runs what was posted, waits a moment for endpoints that are being closed, ends the thread.
  ~UcxWorker();

  const std::shared_ptr<Inbox>& inbox() const { return inbox_; }
  bool Post(Task task) { return inbox_->Post(std::move(task)); }
  /// Posts and waits until it has run. Not on the worker's thread.
  void Run(Task task);

  /// Where peers reach the worker.
  const std::string& address() const { return address_; }

  // --- on the worker's thread only ---

  ucp_worker_h handle() const { return worker_; }
  /// `callback` gets messages of this number with `arg`.
  absl::Status SetHandler(unsigned id, ucp_am_recv_callback_t callback, void* arg);
  /// Runs `task` when the UCX call that is being made has returned.
  void Defer(Task task) { deferred_.push_back(std::move(task)); }
  void RunAt(MonotonicTime time, Task task);
  /// While above zero, the thread spins a little before it sleeps.
  void AddActive(int64_t count) { active_ += count; }
  /// Endpoints that are not closed yet.
  void AddEndpoints(int64_t count) { endpoints_ += count; }

 private:
  explicit UcxWorker(UcxWorkerOptions options) : options_(std::move(options)) {}

  absl::Status Open();
  void Close();
  void Loop();
  bool RunTasks();
  void Sleep();

  const UcxWorkerOptions options_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int event_fd_ = -1;
  std::vector<Task> deferred_;
  std::multimap<MonotonicTime, Task> timers_;
  int64_t active_ = 0;
  int64_t endpoints_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

/// "1.13.1": the library that runs, not the headers.
std::string UcxVersion();

}  // namespace pageferry::transport
