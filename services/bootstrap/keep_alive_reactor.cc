#include "services/bootstrap/keep_alive_reactor.h"

#include <grpcpp/support/status.h>

#include <utility>

#include "libs/common/error.h"
#include "libs/common/grpc_status.h"
#include "services/bootstrap/engine_proto.h"

namespace pageferry::bootstrap {

KeepAliveReactor* KeepAliveReactor::Start(const EdgeContext& edge, Streams& streams,
                                          absl::Status status) {
  std::shared_ptr<KeepAliveReactor> reactor(new KeepAliveReactor(edge, streams));
  KeepAliveReactor* const raw = reactor.get();
  raw->self_ = reactor;
  if (!streams.Add(reactor)) {
    status = MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "draining");
  }
  if (!status.ok()) {
    raw->End(std::move(status));
  } else {
    raw->Pump();
  }
  return raw;
}

void KeepAliveReactor::Set(Next next) {
  {
    const absl::MutexLock lock(&mutex_);
    next_ = next;
  }
  Pump();
}

void KeepAliveReactor::End(absl::Status status) {
  {
    const absl::MutexLock lock(&mutex_);
    if (!end_) end_ = std::move(status);
  }
  Pump();
}

void KeepAliveReactor::OnReadDone(bool ok) {
  if (!ok) return End(absl::OkStatus());  // half-closed, or cancelled: OnCancel tells
  Set(Next::kHandle);
}

void KeepAliveReactor::OnWriteDone(bool ok) {
  if (!ok) return End(absl::CancelledError("the stream has gone"));
  Set(Next::kRead);
}

void KeepAliveReactor::OnCancel() { End(absl::CancelledError("cancelled")); }

void KeepAliveReactor::OnStop() {
  End(MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "the service is draining"));
}

void KeepAliveReactor::OnDone() {
  streams_.Remove(this);
  absl::StatusCode code = absl::StatusCode::kOk;
  {
    const absl::MutexLock lock(&mutex_);
    code = code_;
  }
  edge_.probe.RpcDone(Rpc::kKeepAlive, code, absl::ZeroDuration());
  const std::shared_ptr<KeepAliveReactor> last = std::move(self_);
}

KeepAliveReactor::Step KeepAliveReactor::NextLocked() {
  if (finished_) return Step::kNone;
  if (end_) {
    finished_ = true;
    code_ = end_->code();
    return Step::kFinish;
  }
  switch (std::exchange(next_, Next::kEvent)) {
    case Next::kRead:
      return Step::kRead;
    case Next::kHandle:
      return Step::kHandle;
    case Next::kWrite:
      return Step::kWrite;
    case Next::kEvent:
      break;
  }
  return Step::kNone;
}

void KeepAliveReactor::Pump() {
  const std::shared_ptr<KeepAliveReactor> self = shared_from_this();
  absl::ReleasableMutexLock lock(&mutex_);
  if (std::exchange(pumping_, true)) return;
  lock.Release();
  for (;;) {
    Step step = Step::kNone;
    absl::Status status;
    {
      const absl::MutexLock locked(&mutex_);
      step = NextLocked();
      if (step == Step::kNone) pumping_ = false;
      if (step == Step::kFinish) status = *end_;
    }
    switch (step) {
      case Step::kNone:
        return;
      case Step::kRead:
        StartRead(&request_);
        break;
      case Step::kHandle:
        Handle();
        break;
      case Step::kWrite:
        StartWrite(&response_);
        break;
      case Step::kFinish:
        Finish(ToGrpcStatus(status));
        return;  // pumping_ stays set: nothing may follow
    }
  }
}

void KeepAliveReactor::Handle() {
  auto leases = ReadKeepAlive(request_);
  if (!leases.ok()) return End(leases.status());
  edge_.store.KeepAlive(*std::move(leases),
                        [self = shared_from_this()](std::vector<Renewal> renewals) {
                          self->response_.Clear();
                          ToProto(renewals, self->response_);
                          self->Set(Next::kWrite);
                        });
}

}  // namespace pageferry::bootstrap
