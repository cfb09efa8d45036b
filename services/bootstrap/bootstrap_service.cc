#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/message.h"
#include "libs/common/error.h"
#include "libs/common/grpc_status.h"
#include "pageferry/bootstrap/v1/bootstrap.grpc.pb.h"
#include "services/bootstrap/authorize.h"
#include "services/bootstrap/edge.h"
#include "services/bootstrap/engine_proto.h"
#include "services/bootstrap/keep_alive_reactor.h"
#include "services/bootstrap/watch_reactor.h"

namespace pageferry::bootstrap {
namespace {

/// The end of one unary call: answers it and counts it.
class Answer {
 public:
  Answer(const EdgeContext& edge, Rpc rpc, grpc::ServerUnaryReactor* reactor)
      : edge_(&edge), rpc_(rpc), reactor_(reactor), start_(edge.clock.Now()) {}

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  /// Once.
  void Finish(const absl::Status& status) const {
    edge_->probe.RpcDone(rpc_, status.code(), edge_->clock.Now() - start_);
    reactor_->Finish(ToGrpcStatus(status));
  }

 private:
  const EdgeContext* edge_;
  Rpc rpc_;
  grpc::ServerUnaryReactor* reactor_;
  MonotonicTime start_;
};

/// A unary call that may wait in the store, and leaves it when the client cancels. It owns itself
/// until OnDone; the store's callback keeps it as well.
class WaitReactor : public grpc::ServerUnaryReactor {
 public:
  explicit WaitReactor(Store& store) : store_(store) {}

  /// `start` hands the call to the store; all that refers to `self` may be over when it returns.
  template <class StartFunction>
  static grpc::ServerUnaryReactor* Run(Store& store, StartFunction start) {
    auto self = std::make_shared<WaitReactor>(store);
    self->self_ = self;
    const WaitId wait = start(self);
    if (wait != WaitId()) self->SetWait(wait);
    return self.get();
  }

  void OnCancel() override {
    WaitId wait;
    {
      const absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      wait = wait_;
    }
    if (wait != WaitId()) store_.CancelWait(wait);
  }
  void OnDone() override { const auto last = std::move(self_); }

 private:
  void SetWait(WaitId wait) {
    {
      const absl::MutexLock lock(&mutex_);
      wait_ = wait;
      if (!cancelled_) return;
    }
    store_.CancelWait(wait);
  }

  Store& store_;
  std::shared_ptr<WaitReactor> self_;  // shared with the store's callback
  absl::Mutex mutex_;
  WaitId wait_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

/// When a call stops waiting: a little before its own deadline, so that the caller hears why.
MonotonicTime WaitUntil(const EdgeContext& edge, const grpc::CallbackServerContext& context,
                        absl::Duration wait) {
  const absl::Duration left = absl::FromChrono(context.deadline()) - edge.clock.WallNow();
  const absl::Duration margin = std::min(left / 10, absl::Milliseconds(100));
  return edge.clock.Now() + std::min(wait, left - margin);
}

using RawService =
    v1::Bootstrap::WithRawCallbackMethod_WatchEngines<v1::Bootstrap::CallbackService>;

/// Unary calls: validate, ask the store, write the answer.
class Service final : public RawService {
 public:
  explicit Service(const EdgeContext& edge) : edge_(edge) {}

  void StopStreams() {
    edge_.hub.Stop();
    keep_alives_.Stop();
  }

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override {
    const Answer answer(edge_, Rpc::kRegister, context->DefaultReactor());
    auto claim =
        Read(*context, Action::kClaimCell, [&] { return ReadRegister(*request, edge_.limits); });
    if (!claim.ok()) return Refuse(answer, claim.status());
    edge_.store.Register(*std::move(claim), [answer, response](absl::StatusOr<Grant> grant) {
      if (grant.ok()) {
        response->set_lease_id(grant->lease.value());
        response->set_epoch(grant->epoch.value());
        ToProto(grant->ttl, *response->mutable_ttl());
        response->set_missing_count(static_cast<int32_t>(grant->missing_count));
        response->set_version(grant->version.value());
      }
      answer.Finish(grant.status());
    });
    return answer.reactor();
  }

  grpc::ServerUnaryReactor* Deregister(grpc::CallbackServerContext* context,
                                       const v1::DeregisterRequest* request,
                                       v1::DeregisterResponse* response) override {
    const Answer answer(edge_, Rpc::kDeregister, context->DefaultReactor());
    const auto lease = Read(*context, Action::kClaimCell, [&] { return ReadDeregister(*request); });
    if (!lease.ok()) return Refuse(answer, lease.status());
    edge_.store.Deregister(*lease, [answer, response](absl::StatusOr<bool> existed) {
      if (existed.ok()) response->set_existed(*existed);
      answer.Finish(existed.status());
    });
    return answer.reactor();
  }

  grpc::ServerUnaryReactor* GetEngine(grpc::CallbackServerContext* context,
                                      const v1::GetEngineRequest* request,
                                      v1::GetEngineResponse* response) override {
    const Answer answer(edge_, Rpc::kGetEngine, context->DefaultReactor());
    const auto key = Read(*context, Action::kReadTable, [&] { return ReadKey(request->engine()); });
    if (!key.ok()) return Refuse(answer, key.status());
    const bool with_ranks = request->include_ranks();
    edge_.store.GetEngine(
        *key, with_ranks,
        [this, answer, response, with_ranks](absl::StatusOr<EngineAnswer> engine) {
          if (engine.ok()) {
            ToProto(*engine->engine, with_ranks, engine->now, *response->mutable_engine());
            response->set_version(engine->version.value());
          }
          Finish(answer, engine.status(), *response);
        });
    return answer.reactor();
  }

  grpc::ServerUnaryReactor* ListEngines(grpc::CallbackServerContext* context,
                                        const v1::ListEnginesRequest* request,
                                        v1::ListEnginesResponse* response) override {
    const Answer answer(edge_, Rpc::kListEngines, context->DefaultReactor());
    const auto query =
        Read(*context, Action::kReadTable, [&] { return ReadListEngines(*request); });
    if (!query.ok()) return Refuse(answer, query.status());
    const bool with_ranks = query->with_ranks;
    edge_.store.ListEngines(
        *query, [this, answer, response, with_ranks](absl::StatusOr<EngineListAnswer> page) {
          if (page.ok()) {
            FillPage(*page, with_ranks, *response);
            response->set_version(page->version.value());
            response->set_warming_up(page->warming_up);
          }
          Finish(answer, page.status(), *response);
        });
    return answer.reactor();
  }

  grpc::ServerUnaryReactor* ResolveRanks(grpc::CallbackServerContext* context,
                                         const v1::ResolveRanksRequest* request,
                                         v1::ResolveRanksResponse* response) override {
    auto query = Read(*context, Action::kReadTable, [&] { return ReadResolveRanks(*request); });
    return WaitReactor::Run(edge_.store, [&](const std::shared_ptr<WaitReactor>& self) {
      const Answer answer(edge_, Rpc::kResolveRanks, self.get());
      if (!query.ok()) {
        answer.Finish(query.status());
        return WaitId();
      }
      const MonotonicTime deadline = WaitUntil(edge_, *context, query->wait);
      auto coordinates = query->coordinates;
      return edge_.store.ResolveRanks(
          std::move(query->key), std::move(coordinates), deadline,
          [this, self, answer, response,
           asked = std::move(query->coordinates)](absl::StatusOr<RanksAnswer> ranks) {
            if (ranks.ok()) {
              for (size_t i = 0; i < ranks->ranks.size(); ++i) {
                ToProto(ranks->ranks[i], asked[i], ranks->now, *response->add_ranks());
              }
              response->set_version(ranks->version.value());
            }
            Finish(answer, ranks.status(), *response);
          });
    });
  }

  grpc::ServerUnaryReactor* PlaceRooms(grpc::CallbackServerContext* context,
                                       const v1::PlaceRoomsRequest* request,
                                       v1::PlaceRoomsResponse* response) override {
    const Answer answer(edge_, Rpc::kPlaceRooms, context->DefaultReactor());
    const auto query =
        Read(*context, Action::kPlaceRooms, [&] { return ReadPlaceRooms(*request); });
    if (!query.ok()) return Refuse(answer, query.status());
    edge_.store.PlaceRooms(query->key, query->placements, query->ttl,
                           [answer, response](absl::StatusOr<int64_t> moved) {
                             if (moved.ok()) {
                               response->set_moved_count(static_cast<int32_t>(*moved));
                             }
                             answer.Finish(moved.status());
                           });
    return answer.reactor();
  }

  grpc::ServerUnaryReactor* LookupRooms(grpc::CallbackServerContext* context,
                                        const v1::LookupRoomsRequest* request,
                                        v1::LookupRoomsResponse* response) override {
    auto query = Read(*context, Action::kReadRooms, [&] { return ReadLookupRooms(*request); });
    return WaitReactor::Run(edge_.store, [&](const std::shared_ptr<WaitReactor>& self) {
      const Answer answer(edge_, Rpc::kLookupRooms, self.get());
      if (!query.ok()) {
        answer.Finish(query.status());
        return WaitId();
      }
      const MonotonicTime deadline = WaitUntil(edge_, *context, query->wait);
      return edge_.store.LookupRooms(
          std::move(query->key), std::move(query->rooms), deadline,
          [self, answer, response](absl::StatusOr<std::vector<Placement>> placements) {
            if (placements.ok()) {
              for (const Placement& placement : *placements) {
                v1::RoomPlacement& out = *response->add_placements();
                out.set_room_id(placement.room.value());
                out.set_dp_rank(placement.dp_rank);
              }
            }
            answer.Finish(placements.status());
          });
    });
  }

  grpc::ServerBidiReactor<v1::KeepAliveRequest, v1::KeepAliveResponse>* KeepAlive(
      grpc::CallbackServerContext* context) override {
    return KeepAliveReactor::Start(edge_, keep_alives_, Authorize(*context, Action::kClaimCell));
  }

  using v1::Bootstrap::CallbackService::WatchEngines;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchEngines(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override {
    auto query = Read(*context, Action::kReadTable, [&]() -> absl::StatusOr<WatchQuery> {
      v1::WatchEnginesRequest parsed;
      grpc::ByteBuffer bytes(*request);
      if (!grpc::SerializationTraits<v1::WatchEnginesRequest>::Deserialize(&bytes, &parsed).ok()) {
        return InvalidField("request", "bytes that do not parse", "a WatchEnginesRequest");
      }
      return ReadWatchEngines(parsed);
    });
    return WatchReactor::Start(edge_, *context, std::move(query));
  }

 private:
  /// What `read` answers, if the caller may have it.
  template <class ReadFunction>
  static auto Read(const grpc::CallbackServerContext& context, Action action, ReadFunction read)
      -> decltype(read()) {
    absl::Status allowed = Authorize(context, action);
    if (!allowed.ok()) return allowed;
    return read();
  }

  /// As many engines as fit a message, at least one.
  void FillPage(const EngineListAnswer& page, bool with_ranks,
                v1::ListEnginesResponse& response) const {
    size_t size = 0;
    for (const EngineViewPtr& engine : page.engines) {
      v1::Engine& added = *response.add_engines();
      ToProto(*engine, with_ranks, page.now, added);
      size += added.ByteSizeLong();
      if (size > edge_.hub.options().max_message_bytes && response.engines_size() > 1) {
        response.mutable_engines()->RemoveLast();
        response.set_next_page_token(MakePageToken(engine->key));
        return;
      }
    }
    if (page.next) response.set_next_page_token(MakePageToken(*page.next));
  }

  /// Of answers that may be too large; gRPC would refuse them without our reason.
  void Finish(const Answer& answer, absl::Status status,
              google::protobuf::Message& response) const {
    const size_t allowed = edge_.hub.options().max_message_bytes;
    if (status.ok() && response.ByteSizeLong() > allowed) {
      status = TooLargeToSend(response.ByteSizeLong(), allowed);
    }
    if (!status.ok()) response.Clear();
    answer.Finish(status);
  }

  static grpc::ServerUnaryReactor* Refuse(const Answer& answer, const absl::Status& status) {
    answer.Finish(status);
    return answer.reactor();
  }

  const EdgeContext edge_;
  KeepAliveReactor::Streams keep_alives_;
};

}  // namespace

struct BootstrapEdge::Impl {
  explicit Impl(const EdgeContext& context) : service(context) {}
  Service service;
};

BootstrapEdge::BootstrapEdge(const EdgeContext& context) : impl_(std::make_unique<Impl>(context)) {}
BootstrapEdge::~BootstrapEdge() = default;
grpc::Service* BootstrapEdge::service() { return &impl_->service; }
void BootstrapEdge::StopStreams() { impl_->service.StopStreams(); }

}  // namespace pageferry::bootstrap
