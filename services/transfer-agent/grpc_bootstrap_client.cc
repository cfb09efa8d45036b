#include "services/transfer-agent/grpc_bootstrap_client.h"

#include <grpc/support/time.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <optional>
#include <set>
#include <utility>

#include "libs/common/error.h"
#include "libs/common/gate.h"
#include "libs/common/grpc_status.h"
#include "libs/common/log.h"
#include "libs/common/release_later.h"
#include "pageferry/bootstrap/v1/bootstrap.grpc.pb.h"
#include "services/transfer-agent/bootstrap_messages.h"
#include "services/transfer-agent/client_stream.h"
#include "services/transfer-agent/convert_room.h"

namespace pageferry::agent {
namespace {

LogArea log_area("bootstrap");

/// A channel with its stub, shared by the calls that use it; let go off the reactions.
struct Link {
  explicit Link(std::shared_ptr<grpc::Channel> used)
      : channel(std::move(used)), stub(bootstrap_pb::Bootstrap::NewStub(channel)) {}
  ~Link() {
    stub.reset();
    ReleaseLater(std::shared_ptr<void>(std::move(channel)));
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<bootstrap_pb::Bootstrap::Stub> stub;
};

using EndFunction = BootstrapClient::EndFunction;
using RenewalsFunction = absl::AnyInvocable<void(std::vector<Renewal>)>;
using EventFunction = absl::AnyInvocable<void(TableEvent)>;

/// The reactor of Bootstrap.KeepAlive; its life is drawn in client_stream.h.
class KeepAliveCall final : public ClientStream<bootstrap_pb::KeepAliveRequest,
                                                bootstrap_pb::KeepAliveResponse, LeaseId> {
 public:
  KeepAliveCall(Loop& loop, std::shared_ptr<Link> link, Gate::Holder holder,
                RenewalsFunction on_renewals, EndFunction on_end)
      : ClientStream(loop, {.max_frames = 16, .max_bytes = ByteCount(4096)}),
        link_(std::move(link)),
        holder_(std::move(holder)),
        on_renewals_(std::move(on_renewals)),
        on_end_(std::move(on_end)) {}

  void Begin() {
    ClientStream::Begin([this](grpc::ClientContext* context, ClientStream* reactor) {
      link_->stub->async()->KeepAlive(context, reactor);
    });
  }

  /// A renewal that finds no room is one of many: the stream hangs, and the lease will tell.
  void Renew(LeaseId lease) { static_cast<void>(Push(std::move(lease), ByteCount(8))); }

  void Detach() {
    detached_ = true;
    End(false);
  }

 private:
  absl::AnyInvocable<void()> Receive(const bootstrap_pb::KeepAliveResponse& response) override {
    return [this, renewals = FromProto(response)]() mutable {
      if (!detached_) on_renewals_(std::move(renewals));
      ReadNext();
    };
  }
  void OnEnded(const absl::Status& status) override {
    if (!detached_) on_end_(status);
    holder_.Release();
  }
  bool Pack(const LeaseId& lease, bootstrap_pb::KeepAliveRequest& request) override {
    request.add_lease_ids(lease.value());
    return false;
  }

  const std::shared_ptr<Link> link_;
  Gate::Holder holder_;
  RenewalsFunction on_renewals_;
  EndFunction on_end_;
  bool detached_ = false;
};

/// The reactor of Bootstrap.WatchEngines:
///   Begin: self-reference, hold, first read, StartCall
///   OnReadDone(ok) -> loop -> on_event -> next read; OnReadDone(!ok) -> loop -> RemoveHold
///   OnDone -> loop -> on_end, unless detached -> self-reference goes
class WatchCall final : public grpc::ClientReadReactor<bootstrap_pb::WatchEnginesResponse>,
                        public std::enable_shared_from_this<WatchCall> {
 public:
  WatchCall(Loop& loop, std::shared_ptr<Link> link, Gate::Holder holder, EventFunction on_event,
            EndFunction on_end)
      : loop_(loop),
        link_(std::move(link)),
        holder_(std::move(holder)),
        on_event_(std::move(on_event)),
        on_end_(std::move(on_end)) {}

  void Begin(bootstrap_pb::WatchEnginesRequest request) {
    self_ = shared_from_this();
    request_ = std::move(request);
    link_->stub->async()->WatchEngines(&context_, &request_, this);
    AddHold();
    StartRead(&response_);
    StartCall();
  }

  void Detach() {
    detached_ = true;
    context_.TryCancel();
  }

 private:
  void OnReadDone(bool ok) override {
    std::optional<TableEvent> event;
    if (ok) event = FromProto(response_);
    loop_.Post([self = shared_from_this(), event = std::move(event)]() mutable {
      if (!event.has_value()) return self->RemoveHold();
      if (!self->detached_) self->on_event_(*std::move(event));
      self->StartRead(&self->response_);
    });
  }

  void OnDone(const grpc::Status& status) override {
    loop_.Post([self = std::move(self_), status = FromGrpcStatus(status)] {
      if (!self->detached_) self->on_end_(status);
      self->holder_.Release();
    });
  }

  Loop& loop_;
  const std::shared_ptr<Link> link_;
  Gate::Holder holder_;
  EventFunction on_event_;
  EndFunction on_end_;
  std::shared_ptr<WatchCall> self_;  // until OnDone: gRPC holds a bare pointer
  grpc::ClientContext context_;
  bootstrap_pb::WatchEnginesRequest request_;
  bootstrap_pb::WatchEnginesResponse response_;
  bool detached_ = false;
};

class KeepAliveHandle final : public BootstrapClient::KeepAliveStream {
 public:
  explicit KeepAliveHandle(std::shared_ptr<KeepAliveCall> call) : call_(std::move(call)) {}
  ~KeepAliveHandle() override { call_->Detach(); }
  void Renew(LeaseId lease) override { call_->Renew(lease); }

 private:
  const std::shared_ptr<KeepAliveCall> call_;
};

class WatchHandle final : public BootstrapClient::Stream {
 public:
  explicit WatchHandle(std::shared_ptr<WatchCall> call) : call_(std::move(call)) {}
  ~WatchHandle() override { call_->Detach(); }

 private:
  const std::shared_ptr<WatchCall> call_;
};

/// Where the process is going down: a stream that was never there.
class NoKeepAlive final : public BootstrapClient::KeepAliveStream {
  void Renew(LeaseId) override {}
};
class NoWatch final : public BootstrapClient::Stream {};

}  // namespace

struct GrpcBootstrapClient::Impl {
  Impl(Loop& used_loop, std::vector<std::string> used_addresses, const ChannelOptions& used_options)
      : loop(used_loop), addresses(std::move(used_addresses)), options(used_options) {}

  std::shared_ptr<Link> Use() {
    if (link == nullptr) link = std::make_shared<Link>(MakeChannel(addresses[current], options));
    return link;
  }

  /// After a call over `used` ended with `status`.
  void Judge(const std::shared_ptr<Link>& used, const absl::Status& status) {
    const bool unreachable = IsUnreachable(status) && ReasonOf(status) == Reason::kUnspecified;
    if (!unreachable || used != link || addresses.size() == 1) return;
    current = (current + 1) % addresses.size();
    link = nullptr;
    Log(LogLevel::kInfo, log_area, "address_changed", {{"address", addresses[current]}});
  }

  template <class Request, class Response>
  struct Call {
    std::shared_ptr<Link> link;
    std::optional<Gate::Holder> holder;
    grpc::ClientContext context;
    Request request;
    Response response;
    absl::AnyInvocable<void(const absl::Status&, const Response&)> done;
  };

  template <class Request, class Response, class Start>
  void Unary(Request request, absl::Duration timeout, Start start,
             absl::AnyInvocable<void(const absl::Status&, const Response&)> done) {
    // Shared with gRPC's callback; dropped on the loop.
    auto call = std::make_shared<Call<Request, Response>>();
    call->holder = gate.Enter();
    if (!call->holder.has_value()) {
      return loop.Post([done = std::move(done)]() mutable {
        done(absl::CancelledError("the agent is going down"), Response());
      });
    }
    call->link = Use();
    call->request = std::move(request);
    call->done = std::move(done);
    call->context.set_deadline(
        gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN));
    running.insert(&call->context);
    start(*call->link->stub, &call->context, &call->request, &call->response,
          [this, call](const grpc::Status& status) mutable {
            loop.Post([this, call = std::move(call), status = FromGrpcStatus(status)] {
              running.erase(&call->context);
              Judge(call->link, status);
              call->done(status, call->response);
              call->holder.reset();
            });
          });
  }

  Loop& loop;
  const std::vector<std::string> addresses;
  const ChannelOptions options;
  size_t current = 0;
  std::shared_ptr<Link> link;  // shared with the calls that use it
  std::set<grpc::ClientContext*> running;
  Gate gate;
};

GrpcBootstrapClient::GrpcBootstrapClient(Loop& loop, std::vector<std::string> addresses,
                                         const ChannelOptions& options)
    : impl_(std::make_unique<Impl>(loop, std::move(addresses), options)) {}

GrpcBootstrapClient::~GrpcBootstrapClient() = default;

bool GrpcBootstrapClient::WaitUntilEnded(MonotonicTime deadline) {
  impl_->gate.Close();
  impl_->loop.Post([this] {
    for (grpc::ClientContext* const context : impl_->running) context->TryCancel();
  });
  return impl_->gate.WaitUntilIdle(deadline);
}

void GrpcBootstrapClient::Register(const Registration& registration, absl::Duration timeout,
                                   Done<absl::StatusOr<Claim>> done) {
  impl_->Unary<bootstrap_pb::RegisterRequest, bootstrap_pb::RegisterResponse>(
      ToProto(registration), timeout,
      [](auto& stub, auto* context, auto* request, auto* response, auto then) {
        stub.async()->Register(context, request, response, std::move(then));
      },
      [done = std::move(done)](const absl::Status& status,
                               const bootstrap_pb::RegisterResponse& response) mutable {
        done(status.ok() ? FromProto(response) : absl::StatusOr<Claim>(status));
      });
}

void GrpcBootstrapClient::Deregister(LeaseId lease, absl::Duration timeout,
                                     Done<absl::Status> done) {
  bootstrap_pb::DeregisterRequest request;
  request.set_lease_id(lease.value());
  impl_->Unary<bootstrap_pb::DeregisterRequest, bootstrap_pb::DeregisterResponse>(
      std::move(request), timeout,
      [](auto& stub, auto* context, auto* sent, auto* response, auto then) {
        stub.async()->Deregister(context, sent, response, std::move(then));
      },
      [done = std::move(done)](const absl::Status& status, const auto&) mutable { done(status); });
}

std::unique_ptr<BootstrapClient::KeepAliveStream> GrpcBootstrapClient::OpenKeepAlive(
    RenewalsFunction on_renewals, EndFunction on_end) {
  std::optional<Gate::Holder> holder = impl_->gate.Enter();
  if (!holder.has_value()) return std::make_unique<NoKeepAlive>();
  const std::shared_ptr<Link> link = impl_->Use();
  auto call = std::make_shared<KeepAliveCall>(
      impl_->loop, link, *std::move(holder), std::move(on_renewals),
      [this, link, on_end = std::move(on_end)](const absl::Status& status) mutable {
        impl_->Judge(link, status);
        on_end(status);
      });
  call->Begin();
  return std::make_unique<KeepAliveHandle>(std::move(call));
}

std::unique_ptr<BootstrapClient::Stream> GrpcBootstrapClient::OpenWatch(
    const NamespaceName& name_space, const std::vector<EngineId>& engines,
    TableVersion resume_version, EventFunction on_event, EndFunction on_end) {
  std::optional<Gate::Holder> holder = impl_->gate.Enter();
  if (!holder.has_value()) return std::make_unique<NoWatch>();
  bootstrap_pb::WatchEnginesRequest request;
  request.set_namespace_(name_space.value());
  for (const EngineId& engine : engines) request.add_engine_ids(engine.value());
  request.set_resume_version(resume_version.value());
  request.set_include_ranks(true);
  const std::shared_ptr<Link> link = impl_->Use();
  auto call = std::make_shared<WatchCall>(
      impl_->loop, link, *std::move(holder), std::move(on_event),
      [this, link, on_end = std::move(on_end)](const absl::Status& status) mutable {
        impl_->Judge(link, status);
        on_end(status);
      });
  call->Begin(std::move(request));
  return std::make_unique<WatchHandle>(std::move(call));
}

void GrpcBootstrapClient::PlaceRooms(const NamespaceName& name_space, const EngineId& engine,
                                     const std::vector<std::pair<RoomId, int64_t>>& rooms,
                                     absl::Duration timeout, Done<absl::Status> done) {
  bootstrap_pb::PlaceRoomsRequest request;
  ToProto(name_space, engine, *request.mutable_engine());
  for (const auto& [room, dp_rank] : rooms) {
    bootstrap_pb::RoomPlacement& placement = *request.add_placements();
    placement.set_room_id(room.value());
    placement.set_dp_rank(static_cast<int32_t>(dp_rank));
  }
  impl_->Unary<bootstrap_pb::PlaceRoomsRequest, bootstrap_pb::PlaceRoomsResponse>(
      std::move(request), timeout,
      [](auto& stub, auto* context, auto* sent, auto* response, auto then) {
        stub.async()->PlaceRooms(context, sent, response, std::move(then));
      },
      [done = std::move(done)](const absl::Status& status, const auto&) mutable { done(status); });
}

void GrpcBootstrapClient::LookupRoom(const NamespaceName& name_space, const EngineId& engine,
                                     RoomId room, absl::Duration wait,
                                     Done<absl::StatusOr<int64_t>> done) {
  bootstrap_pb::LookupRoomsRequest request;
  ToProto(name_space, engine, *request.mutable_engine());
  request.add_room_ids(room.value());
  ToProto(wait, *request.mutable_wait());
  impl_->Unary<bootstrap_pb::LookupRoomsRequest, bootstrap_pb::LookupRoomsResponse>(
      std::move(request), wait + absl::Seconds(2),
      [](auto& stub, auto* context, auto* sent, auto* response, auto then) {
        stub.async()->LookupRooms(context, sent, response, std::move(then));
      },
      [room, done = std::move(done)](const absl::Status& status,
                                     const bootstrap_pb::LookupRoomsResponse& response) mutable {
        if (!status.ok()) return done(status);
        for (const bootstrap_pb::RoomPlacement& placement : response.placements()) {
          const int64_t rank = placement.dp_rank();
          if (placement.room_id() == room.value() && rank >= 0 && rank < 65'536) return done(rank);
        }
        done(MakeError(absl::StatusCode::kNotFound, Reason::kRoomNotPlaced,
                       "the room was not placed at a DP rank"));
      });
}

}  // namespace pageferry::agent
