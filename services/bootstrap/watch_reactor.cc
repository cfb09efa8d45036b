#include "services/bootstrap/watch_reactor.h"

#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libs/common/error.h"
#include "libs/common/grpc_status.h"

namespace pageferry::bootstrap {
namespace {

/// A slice that shares the piece's memory.
grpc::Slice Share(const SharedBytes& piece) {
  auto* const holder = new SharedBytes(piece);              // NOLINT: owned by the slice
  return {const_cast<char*>(piece->data()), piece->size(),  // NOLINT: slices are not written to
          [](void* user) { delete static_cast<SharedBytes*>(user); }, holder};
}

grpc::ByteBuffer ToBuffer(const WatchMessage& message) {
  constexpr size_t kCopyBelow = 1024;  // a slice of its own costs more than a copy
  std::vector<grpc::Slice> slices;
  std::string small;
  const auto flush = [&] {
    if (!small.empty()) slices.emplace_back(small);
    small.clear();
  };
  for (const SharedBytes& piece : message.pieces) {
    if (piece->size() < kCopyBelow) {
      small += *piece;
      continue;
    }
    flush();
    slices.push_back(Share(piece));
  }
  flush();
  return {slices.data(), slices.size()};
}

}  // namespace

WatchReactor::WatchReactor(const EdgeContext& edge, grpc::CallbackServerContext& context)
    : edge_(edge),
      // Watchers that heard of one change together shall not all hear of no change together.
      progress_interval_(edge.hub.options().progress_interval -
                         (reinterpret_cast<uintptr_t>(this) / 4096 % 3) * edge.hub.options().tick),
      call_(context.c_call()),
      since_(edge.clock.Now()) {}

WatchReactor* WatchReactor::Start(const EdgeContext& edge, grpc::CallbackServerContext& context,
                                  absl::StatusOr<WatchQuery> query) {
  const std::shared_ptr<WatchReactor> reactor(new WatchReactor(edge, context));
  reactor->self_ = reactor;
  absl::Status status = query.status();
  // At once, so that OnDone, which may come before Open, takes it away again.
  if (status.ok()) status = edge.hub.Add(reactor);
  if (!status.ok()) {
    reactor->End(std::move(status));
    return reactor.get();
  }
  edge.store.Sync([reactor, query = *std::move(query)] { reactor->Open(query); });
  return reactor.get();
}

void WatchReactor::Open(const WatchQuery& query) {
  auto cursor = edge_.hub.Open(query);
  if (!cursor.ok()) return End(cursor.status());
  cursor_ = *std::move(cursor);
  {
    const absl::MutexLock lock(&mutex_);
    open_ = true;
  }
  Pump();
}

void WatchReactor::End(absl::Status status) {
  {
    const absl::MutexLock lock(&mutex_);
    if (!end_) end_ = std::move(status);
  }
  Pump();
}

void WatchReactor::OnCancel() { End(absl::CancelledError("cancelled")); }

void WatchReactor::OnStop() {
  End(MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "the service is draining"));
}

void WatchReactor::OnNews() {
  {
    const absl::MutexLock lock(&mutex_);
    news_ = true;
  }
  Pump();
}

void WatchReactor::OnWriteDone(bool ok) {
  if (!ok) return End(absl::CancelledError("the stream has gone"));
  edge_.probe.WatchMessage();
  {
    const absl::MutexLock lock(&mutex_);
    writing_ = false;
  }
  Pump();
}

void WatchReactor::OnTick(MonotonicTime now) {
  bool cut_off = false;
  std::optional<CallReference> cancel;
  {
    const absl::MutexLock lock(&mutex_);
    const absl::Duration quiet = now - since_;
    if (finished_) {
      if (quiet > edge_.watch_stall_timeout && call_) cancel.emplace(*call_);
    } else if (writing_) {
      cut_off = quiet > edge_.watch_stall_timeout;
    } else {
      news_ = true;  // the end of a warm-up is news that nobody brings
      progress_ = quiet >= progress_interval_;
    }
  }
  if (cancel) cancel->Cancel();
  if (!cut_off) return Pump();
  edge_.probe.WatchCutOff();
  End(MakeError(absl::StatusCode::kResourceExhausted, Reason::kSlowConsumer,
                "the watcher reads too slowly"));
}

void WatchReactor::OnDone() {
  edge_.hub.Remove(this);
  absl::StatusCode code = absl::StatusCode::kOk;
  std::optional<CallReference> call;
  {
    const absl::MutexLock lock(&mutex_);
    code = end_->code();
    if (call_) call.emplace(*call_);
    call_.reset();
  }
  edge_.probe.RpcDone(Rpc::kWatchEngines, code, absl::ZeroDuration());
  const std::shared_ptr<WatchReactor> last = std::move(self_);
}

WatchReactor::Step WatchReactor::NextLocked() {
  if (finished_) return Step::kNone;
  if (end_) {
    finished_ = true;
    since_ = edge_.clock.Now();
    return Step::kFinish;
  }
  if (writing_) return Step::kNone;
  if (!outbox_.empty()) {
    writing_ = true;
    since_ = edge_.clock.Now();
    return Step::kWrite;
  }
  return open_ && std::exchange(news_, false) ? Step::kTake : Step::kNone;
}

void WatchReactor::Pump() {
  const std::shared_ptr<WatchReactor> self = shared_from_this();
  {
    const absl::MutexLock lock(&mutex_);
    if (std::exchange(pumping_, true)) return;
  }
  for (;;) {
    Step step = Step::kNone;
    absl::Status status;
    WatchMessage message;
    {
      const absl::MutexLock lock(&mutex_);
      step = NextLocked();
      if (step == Step::kNone) pumping_ = false;
      if (step == Step::kFinish) status = *end_;
      if (step == Step::kWrite) {
        message = std::move(outbox_.front());
        outbox_.pop_front();
      }
    }
    switch (step) {
      case Step::kNone:
        return;
      case Step::kTake:
        Take();
        break;
      case Step::kWrite:
        buffer_ = ToBuffer(message);
        StartWrite(&buffer_);
        break;
      case Step::kFinish:
        Finish(ToGrpcStatus(status));
        return;  // pumping_ stays set: nothing may follow
    }
  }
}

void WatchReactor::Take() {
  auto messages = edge_.hub.Take(cursor_);
  const absl::MutexLock lock(&mutex_);
  if (!messages.ok()) {
    if (!end_) end_ = messages.status();
    return;
  }
  const bool progress = std::exchange(progress_, false);
  for (WatchMessage& message : *messages) outbox_.push_back(std::move(message));
  if (outbox_.empty() && progress) outbox_.push_back(WatchHub::Progress(cursor_));
}

}  // namespace pageferry::bootstrap
