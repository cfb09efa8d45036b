#include "libs/common/grpc_health.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "libs/common/error.h"
#include "libs/common/grpc_status.h"
#include "libs/common/health.h"

namespace pageferry {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthCheckResponse::ServingStatus ToProto(HealthRegistry::Serving serving) {
  if (!serving.has_value()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return *serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

// What one Watch stream has sent and has to do next. Shared by the reactor and its wake-ups:
//
//   idle --state differs--> writing --OnWriteDone--> idle --ended or cancelled--> finished
//
// Only the thread that moves to `writing` or `finished` calls the reactor, without the lock; the
// reactor lives until OnDone, which comes after Finish and after every write.
class WatchStream {
 public:
  WatchStream(HealthRegistry& health, std::string service,
              grpc::ServerWriteReactor<HealthCheckResponse>& reactor)
      : health_(health), service_(std::move(service)), reactor_(reactor) {}

  void Pump() {
    bool write = false;
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || finished_) return;
      // In this order: with the end all states changed, so who sees it sees them too.
      const bool ended = health_.ended();
      const auto state = ToProto(health_.Get(service_));
      if (!cancelled_ && sent_ != state) {
        sent_ = state;
        message_.set_status(state);
        write = writing_ = true;
      } else if (cancelled_ || ended) {
        finished_ = true;
      } else {
        return;
      }
    }
    if (write) {
      reactor_.StartWrite(&message_);
    } else {
      reactor_.Finish(ToGrpcStatus(MakeError(absl::StatusCode::kUnavailable, Reason::kDraining,
                                             "the server is shutting down")));
    }
  }

  void OnWriteDone(bool ok) {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) cancelled_ = true;
    }
    Pump();
  }

  void OnCancel() {
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
    }
    Pump();
  }

 private:
  HealthRegistry& health_;
  const std::string service_;
  grpc::ServerWriteReactor<HealthCheckResponse>& reactor_;
  HealthCheckResponse message_;  // belongs to the write while writing_
  absl::Mutex mutex_;
  std::optional<HealthCheckResponse::ServingStatus> sent_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

class WatchReactor final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  WatchReactor(HealthRegistry& health, const std::string& service)
      : health_(health), stream_(std::make_shared<WatchStream>(health, service, *this)) {
    watch_ = health_.Watch([stream = stream_] { stream->Pump(); });
    stream_->Pump();
  }

  void OnWriteDone(bool ok) override { stream_->OnWriteDone(ok); }
  void OnCancel() override { stream_->OnCancel(); }
  void OnDone() override {
    health_.Unwatch(watch_);
    delete this;
  }

 private:
  HealthRegistry& health_;
  const std::shared_ptr<WatchStream> stream_;
  int64_t watch_ = 0;
};

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit HealthService(HealthRegistry& health) : health_(health) {}

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const HealthCheckRequest* request,
                                  HealthCheckResponse* response) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const HealthRegistry::Serving serving = health_.Get(request->service());
    if (serving.has_value()) {
      response->set_status(ToProto(serving));
      reactor->Finish(grpc::Status::OK);
    } else {
      reactor->Finish({grpc::StatusCode::NOT_FOUND, "unknown service"});
    }
    return reactor;
  }

  grpc::ServerWriteReactor<HealthCheckResponse>* Watch(grpc::CallbackServerContext* /*context*/,
                                                       const HealthCheckRequest* request) override {
    return new WatchReactor(health_, request->service());
  }

 private:
  HealthRegistry& health_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeHealthService(HealthRegistry& health) {
  return std::make_unique<HealthService>(health);
}

}  // namespace pageferry
