#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "libs/transport/page_copy.h"
#include "libs/transport/transport.h"

namespace pageferry::transport {

/// A write that is done slice by slice. Made by a way, run by a `SliceQueue`.
class SliceJob {
 public:
  virtual ~SliceJob() = default;

  /// False when nothing is left to be cut. With the queue's lock held, as `Cut`.
  virtual bool has_more() const = 0;
  /// Cuts the next slice off, in place of what `slice` held. Must be quick.
  virtual void Cut(std::vector<Segment>& slice) = 0;
  /// True when it is not wanted any more.
  virtual bool cancelled() const = 0;
  /// Moves a slice. Slices of one job may run at the same time on several threads.
  virtual absl::Status Run(absl::Span<const Segment> slice) = 0;
  /// Runs once, last: after all slices, with the first error if there was one.
  virtual void Done(absl::Status status) = 0;
};

/// Runs jobs of many flows on a few threads, a slice at a time.
///
/// Jobs of one flow go one after the other; flows of one priority take turns. Of eight turns, seven
/// go to the highest priority, and one to the others in rotation, so that a low one is slow but
/// never stuck (and learns of its cancellation). Idle threads sleep.
///
/// Thread-safe. Owns threads and jobs. No lock is held while `Run` or a callback runs. Clients must
/// have been removed before it is destroyed.
class SliceQueue {
 public:
  using ClientId = int64_t;

  explicit SliceQueue(int threads);
  SliceQueue(const SliceQueue&) = delete;
  SliceQueue& operator=(const SliceQueue&) = delete;
  ~SliceQueue();

  /// Somebody whose jobs are waited for and ended together.
  ClientId AddClient();
  /// Ends all jobs of the client, kCancelled where they were not done, and blocks until all its
  /// callbacks have returned. Not from a callback.
  void RemoveClient(ClientId client);

  /// `status` other than OK: the job moves nothing and ends with it, in its turn.
  void Push(ClientId client, uint64_t flow, int32_t priority, std::unique_ptr<SliceJob> job,
            absl::Status status = absl::OkStatus());

  /// Runs `done` with OK, on a thread of the queue, once all jobs pushed before have ended.
  void Flush(ClientId client, WriteDone done);

 private:
  struct Client;
  struct Job {
    int64_t sequence = 0;
    int32_t priority = 0;
    std::unique_ptr<SliceJob> work;
    absl::Status status;
    int running = 0;
  };
  // Waiting for its turn (in_ring) while its first job has slices left; busy while that job's
  // callback runs.
  struct Flow {
    std::shared_ptr<Client> client;
    uint64_t id = 0;
    std::deque<Job> jobs;
    bool in_ring = false;
    bool busy = false;
  };
  using Ring = std::deque<Flow*>;
  using FlowKey = std::pair<ClientId, uint64_t>;

  void Work();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RunCallback() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunFlow(Flow& flow, std::vector<Segment>& slice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(Flow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enter(Flow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Flow& Pick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseFlushes(const std::shared_ptr<Client>& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar work_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t last_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  ClientId last_client_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
  // No ring in it is empty.
  std::map<int32_t, Ring, std::greater<>> rings_ ABSL_GUARDED_BY(mutex_);
  Ring closing_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<std::shared_ptr<Client>, WriteDone>> callbacks_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ClientId, std::shared_ptr<Client>> clients_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<FlowKey, std::unique_ptr<Flow>> flows_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace pageferry::transport
