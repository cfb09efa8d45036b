#include "libs/transport/slice_queue.h"

#include <algorithm>
#include <iterator>

namespace pageferry::transport {

// Shared by its flows and callbacks; all fields are guarded by the queue's mutex.
struct SliceQueue::Client {
  ClientId id = 0;
  bool closing = false;
  // Jobs whose callback has not returned.
  std::set<int64_t> unfinished;
  // (last job to wait for, callback), in order.
  std::deque<std::pair<int64_t, WriteDone>> flushes;
  // Flush callbacks that have not returned.
  int callbacks = 0;

  bool idle() const { return unfinished.empty() && flushes.empty() && callbacks == 0; }
};

SliceQueue::SliceQueue(int threads) {
  threads_.reserve(static_cast<size_t>(std::max(threads, 1)));
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { Work(); });
}

SliceQueue::~SliceQueue() {
  {
    const absl::MutexLock lock(&mutex_);
    stop_ = true;
    work_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

SliceQueue::ClientId SliceQueue::AddClient() {
  const absl::MutexLock lock(&mutex_);
  auto client = std::make_shared<Client>();
  client->id = ++last_client_;
  clients_.emplace(client->id, client);
  return client->id;
}

void SliceQueue::RemoveClient(ClientId id) {
  const absl::MutexLock lock(&mutex_);
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  const std::shared_ptr<Client> client = found->second;
  client->closing = true;
  // Its flows go before all others: there is nothing to be moved any more.
  for (auto ring = rings_.begin(); ring != rings_.end();) {
    Ring others;
    for (Flow* flow : ring->second) (flow->client == client ? closing_ : others).push_back(flow);
    ring->second = std::move(others);
    ring = ring->second.empty() ? rings_.erase(ring) : std::next(ring);
  }
  work_.SignalAll();
  const auto idle = [&client] { return client->idle(); };
  mutex_.Await(absl::Condition(&idle));
  clients_.erase(id);
}

void SliceQueue::Push(ClientId id, uint64_t flow_id, int32_t priority,
                      std::unique_ptr<SliceJob> work, absl::Status status) {
  const absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Client>& client = clients_.at(id);
  std::unique_ptr<Flow>& flow = flows_[FlowKey{id, flow_id}];
  if (flow == nullptr) {
    flow = std::make_unique<Flow>();
    flow->client = client;
    flow->id = flow_id;
  }
  Job job;
  job.sequence = ++last_sequence_;
  job.priority = priority;
  job.work = std::move(work);
  job.status = std::move(status);
  client->unfinished.insert(job.sequence);
  flow->jobs.push_back(std::move(job));
  if (flow->jobs.size() == 1 && !flow->busy) Enter(*flow);
}

void SliceQueue::Flush(ClientId id, WriteDone done) {
  const absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Client>& client = clients_.at(id);
  client->flushes.emplace_back(last_sequence_, std::move(done));
  ReleaseFlushes(client);
}

void SliceQueue::ReleaseFlushes(const std::shared_ptr<Client>& client) {
  while (
      !client->flushes.empty() &&
      (client->unfinished.empty() || *client->unfinished.begin() > client->flushes.front().first)) {
    callbacks_.emplace_back(client, std::move(client->flushes.front().second));
    client->flushes.pop_front();
    ++client->callbacks;
    work_.Signal();
  }
}

void SliceQueue::Enter(Flow& flow) {
  flow.in_ring = true;
  Ring& ring = flow.client->closing ? closing_ : rings_[flow.jobs.front().priority];
  ring.push_back(&flow);
  work_.Signal();
}

SliceQueue::Flow& SliceQueue::Pick() {
  constexpr uint64_t kTurns = 8;
  Ring* ring = &closing_;
  auto level = rings_.begin();
  if (closing_.empty()) {
    ++turns_;
    if (turns_ % kTurns == 0) {
      std::advance(level, static_cast<int64_t>(turns_ / kTurns % rings_.size()));
    }
    ring = &level->second;
  }
  Flow& flow = *ring->front();
  ring->pop_front();
  if (ring != &closing_ && ring->empty()) rings_.erase(level);
  flow.in_ring = false;
  return flow;
}

bool SliceQueue::HasWork() const {
  return !callbacks_.empty() || !closing_.empty() || !rings_.empty();
}

void SliceQueue::Work() {
  std::vector<Segment> slice;
  const absl::MutexLock lock(&mutex_);
  while (true) {
    while (!HasWork() && !stop_) work_.Wait(&mutex_);
    if (!HasWork()) return;
    if (!RunCallback()) RunFlow(Pick(), slice);
  }
}

bool SliceQueue::RunCallback() {
  if (callbacks_.empty()) return false;
  auto [client, done] = std::move(callbacks_.front());
  callbacks_.pop_front();
  mutex_.Unlock();
  std::move(done)(absl::OkStatus());
  done = nullptr;
  mutex_.Lock();
  --client->callbacks;
  return true;
}

void SliceQueue::RunFlow(Flow& flow, std::vector<Segment>& slice) {
  Job& job = flow.jobs.front();
  if (job.status.ok() && (flow.client->closing || job.work->cancelled())) {
    job.status = absl::CancelledError("the write was cancelled");
  }
  if (job.status.ok() && job.work->has_more()) {
    job.work->Cut(slice);
    ++job.running;
    // Another thread may take the next slice.
    if (job.work->has_more()) Enter(flow);
    mutex_.Unlock();
    const absl::Status status = job.work->Run(slice);
    mutex_.Lock();
    --job.running;
    job.status.Update(status);
  }
  const bool ended = !job.status.ok() || !job.work->has_more();
  if (job.running == 0 && !flow.in_ring && ended) Finish(flow);
}

void SliceQueue::Finish(Flow& flow) {
  Job job = std::move(flow.jobs.front());
  flow.jobs.pop_front();
  flow.busy = true;
  mutex_.Unlock();
  job.work->Done(std::move(job.status));
  job.work = nullptr;
  mutex_.Lock();
  flow.busy = false;
  const std::shared_ptr<Client> client = flow.client;
  client->unfinished.erase(job.sequence);
  ReleaseFlushes(client);
  if (!flow.jobs.empty()) {
    Enter(flow);
  } else {
    flows_.erase(FlowKey{client->id, flow.id});
  }
}

}  // namespace pageferry::transport
