#include "services/transfer-agent/engine_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "libs/common/error.h"
#include "libs/common/grpc_identity.h"
#include "libs/common/grpc_status.h"
#include "pageferry/agent/v1/agent.grpc.pb.h"
#include "services/transfer-agent/authorize.h"
#include "services/transfer-agent/convert_pool.h"
#include "services/transfer-agent/convert_profile.h"
#include "services/transfer-agent/convert_room.h"
#include "services/transfer-agent/engine_session.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {
namespace {

Caller CallerOf(const grpc::CallbackServerContext& context) {
  return {.identity = CallerIdentity(context), .address = context.peer()};
}

/// One unary call: finished exactly once, also where the loop drops it unrun.
class Call {
 public:
  explicit Call(grpc::ServerUnaryReactor* reactor) : reactor_(reactor) {}
  Call(Call&& other) noexcept : reactor_(std::exchange(other.reactor_, nullptr)) {}
  Call& operator=(Call&&) = delete;
  ~Call() { Finish(absl::UnavailableError("the agent is going down")); }

  void Finish(const absl::Status& status) {
    if (auto* const reactor = std::exchange(reactor_, nullptr))
      reactor->Finish(ToGrpcStatus(status));
  }

 private:
  grpc::ServerUnaryReactor* reactor_;
};

/// "room:attempt" of the last room of a page.
absl::StatusOr<std::optional<RoomKey>> ParsePageToken(const std::string& token) {
  if (token.empty()) return std::optional<RoomKey>();
  const std::vector<absl::string_view> parts = absl::StrSplit(token, ':');
  int64_t room = 0;
  int64_t attempt = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &room) ||
      !absl::SimpleAtoi(parts[1], &attempt)) {
    return InvalidField("page_token", absl::string_view(token).substr(0, 64),
                        "one of an earlier response");
  }
  return std::optional<RoomKey>(RoomKey{RoomId(room), Attempt(attempt)});
}

/// The page's size, and states that the agent knows.
absl::Status CheckList(const agent_pb::ListRoomsRequest& request) {
  if (absl::Status status = CheckRange("page_size", request.page_size(), 0, 1000); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckCount("states", request.states_size(), 16); !status.ok()) {
    return status;
  }
  for (const int state : request.states()) {
    if (absl::Status status = CheckEnum("states", state, agent_pb::RoomState_IsValid);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

class EngineService final : public agent_pb::TransferAgent::CallbackService {
 public:
  explicit EngineService(EngineServiceParts parts) : parts_(std::move(parts)) {}

  grpc::ServerUnaryReactor* GetAgent(grpc::CallbackServerContext* context,
                                     const agent_pb::GetAgentRequest*,
                                     agent_pb::GetAgentResponse* response) override {
    return Run(context, Action::kOperate, absl::OkStatus(), [this, response](Call call) {
      Describe(*response);
      call.Finish(absl::OkStatus());
    });
  }

  grpc::ServerUnaryReactor* CreatePool(grpc::CallbackServerContext* context,
                                       const agent_pb::CreatePoolRequest* request,
                                       agent_pb::CreatePoolResponse* response) override {
    return Run(context, Action::kServeEngine, CheckPool(*request),
               [this, request, response](Call call) {
                 parts_.host.CreatePool(
                     request->name(), ByteCount(request->size_bytes()), HugePagesOf(*request),
                     [response, call = std::move(call)](absl::StatusOr<PoolView> view) mutable {
                       if (view.ok()) {
                         agent::ToProto(*view, *response->mutable_pool());
                         response->set_adopted(view->adopted);
                       }
                       call.Finish(view.status());
                     });
               });
  }

  grpc::ServerUnaryReactor* ImportPool(grpc::CallbackServerContext* context,
                                       const agent_pb::ImportPoolRequest* request,
                                       agent_pb::ImportPoolResponse* response) override {
    absl::StatusOr<PoolImport> import = FromProto(*request);
    const absl::Status status = import.status();
    return Run(context, Action::kServeEngine, status,
               [this, response, import = std::move(import)](Call call) mutable {
                 parts_.host.ImportPool(
                     *std::move(import),
                     [response, call = std::move(call)](absl::StatusOr<PoolView> view) mutable {
                       if (view.ok()) agent::ToProto(*view, *response->mutable_pool());
                       call.Finish(view.status());
                     });
               });
  }

  grpc::ServerUnaryReactor* ReleasePool(grpc::CallbackServerContext* context,
                                        const agent_pb::ReleasePoolRequest* request,
                                        agent_pb::ReleasePoolResponse*) override {
    return Run(
        context, Action::kServeEngine, CheckName("name", request->name(), 64),
        [this, request](Call call) { call.Finish(parts_.host.ReleasePool(request->name())); });
  }

  grpc::ServerUnaryReactor* RegisterEngine(grpc::CallbackServerContext* context,
                                           const agent_pb::RegisterEngineRequest* request,
                                           agent_pb::RegisterEngineResponse* response) override {
    absl::StatusOr<EngineInfo> engine = FromProto(*request);
    const absl::Status status = engine.status();
    return Run(context, Action::kServeEngine, status,
               [this, response, engine = std::move(engine)](Call call) mutable {
                 parts_.host.RegisterEngine(
                     *std::move(engine),
                     [response, call = std::move(call)](absl::StatusOr<AgentRef> agent) mutable {
                       if (agent.ok()) agent::ToProto(*agent, *response->mutable_agent());
                       call.Finish(agent.status());
                     });
               });
  }

  grpc::ServerBidiReactor<agent_pb::SessionRequest, agent_pb::SessionResponse>* Session(
      grpc::CallbackServerContext* context) override {
    const auto session = std::make_shared<EngineSession>(parts_.loop, *context, parts_.host);
    session->Begin(Authorize(CallerOf(*context), Action::kServeEngine));
    return session.get();
  }

  grpc::ServerUnaryReactor* ListRooms(grpc::CallbackServerContext* context,
                                      const agent_pb::ListRoomsRequest* request,
                                      agent_pb::ListRoomsResponse* response) override {
    absl::StatusOr<std::optional<RoomKey>> after = ParsePageToken(request->page_token());
    absl::Status status = after.status();
    if (status.ok()) status = CheckList(*request);
    return Run(context, Action::kOperate, status,
               [this, request, response, after = std::move(after)](Call call) {
                 List(*request, *after, *response);
                 call.Finish(absl::OkStatus());
               });
  }

  grpc::ServerUnaryReactor* GetRoom(grpc::CallbackServerContext* context,
                                    const agent_pb::GetRoomRequest* request,
                                    agent_pb::GetRoomResponse* response) override {
    const absl::StatusOr<RoomKey> room = FromProto(request->room(), 0);
    return Run(context, Action::kOperate, room.status(), [this, room, response](Call call) {
      const absl::StatusOr<RoomView> view = parts_.core.GetRoom(*room, parts_.loop.Now());
      if (view.ok()) agent::ToProto(*view, *response->mutable_room());
      call.Finish(view.status());
    });
  }

  grpc::ServerUnaryReactor* AbortRoom(grpc::CallbackServerContext* context,
                                      const agent_pb::AbortRoomRequest* request,
                                      agent_pb::AbortRoomResponse* response) override {
    const absl::StatusOr<RoomKey> room = FromProto(request->room(), 0);
    absl::Status status = room.status();
    if (status.ok()) status = CheckSize("detail", request->detail(), 256);
    return Run(context, Action::kOperate, status, [this, room, request, response](Call call) {
      const absl::Status aborted =
          parts_.core.AbortRoom(*room, request->detail(), parts_.loop.Now());
      if (!aborted.ok()) return call.Finish(aborted);
      const absl::StatusOr<RoomView> view = parts_.core.GetRoom(*room, parts_.loop.Now());
      if (view.ok()) agent::ToProto(*view, *response->mutable_room());
      call.Finish(absl::OkStatus());
    });
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const agent_pb::DrainRequest* request,
                                  agent_pb::DrainResponse* response) override {
    absl::StatusOr<absl::Duration> timeout = absl::Seconds(30);
    if (request->has_timeout()) {
      timeout = CheckDuration("timeout", request->timeout().seconds(), request->timeout().nanos(),
                              absl::ZeroDuration(), absl::Hours(1));
    }
    return Run(context, Action::kOperate, timeout.status(),
               [this, timeout, request, response](Call call) {
                 parts_.drainer.Start(
                     *timeout, request->deregister(),
                     [response, call = std::move(call)](Drainer::Result result) mutable {
                       response->set_finished_count(static_cast<int32_t>(result.finished));
                       response->set_aborted_count(static_cast<int32_t>(result.aborted));
                       call.Finish(absl::OkStatus());
                     });
               });
  }

 private:
  /// Lets the loop do `work` unless the caller or its request is refused. Request and response
  /// live until the call is finished.
  template <class Work>
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, Action action,
                                const absl::Status& valid, Work work) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    absl::Status status = Authorize(CallerOf(*context), action);
    if (status.ok()) status = valid;
    Call call(reactor);
    if (!status.ok()) {
      call.Finish(status);
      return reactor;
    }
    parts_.loop.Post(
        [call = std::move(call), work = std::move(work)]() mutable { work(std::move(call)); });
    return reactor;
  }

  void Describe(agent_pb::GetAgentResponse& response) {
    agent::ToProto(parts_.own.agent, *response.mutable_agent());
    response.set_state(static_cast<agent_pb::AgentState>(parts_.host.state()));
    response.mutable_peer_endpoint()->set_host(parts_.peer_endpoint.host);
    response.mutable_peer_endpoint()->set_port(parts_.peer_endpoint.port);
    if (parts_.own.registered) *response.mutable_engine() = ToRegisterRequest(parts_.own.engine);
    for (const PoolView& pool : parts_.pools.Views()) agent::ToProto(pool, *response.add_pools());
    for (const PeerView& view : parts_.directory.Views()) {
      agent_pb::PeerSession& session = *response.add_sessions();
      agent::ToProto(view.agent, *session.mutable_agent());
      session.set_engine_id(view.engine);
      agent::ToProto(view.coordinate, *session.mutable_coordinate());
      session.set_transport(view.transport);
      session.set_transport_reason(view.transport_reason);
      session.set_dialled(view.dialled);
      session.set_state(view.state);
      session.set_room_count(static_cast<int32_t>(view.rooms));
    }
    for (const transport::TransportKind kind : parts_.own.policy.allowed) {
      response.add_transports(std::string(transport::TransportName(kind)));
    }
    const LeaseKeeper& lease = parts_.host.lease();
    response.mutable_lease()->set_live(lease.live());
    response.mutable_lease()->set_lease_id(lease.lease().value());
    if (!lease.last_error().ok()) {
      ToErrorDetail(lease.last_error(), *response.mutable_lease()->mutable_error());
    }
    const std::map<std::string, int64_t> ledger = parts_.core.Ledger();
    response.mutable_ledger()->insert(ledger.begin(), ledger.end());
    response.set_version(parts_.version);
  }

  void List(const agent_pb::ListRoomsRequest& request, std::optional<RoomKey> after,
            agent_pb::ListRoomsResponse& response) {
    const int size = request.page_size() == 0 ? 100 : request.page_size();
    // A bound on what one call looks at, where few rooms are in the wanted state: the page is then
    // short, but not the last.
    for (int looks = 0; looks < 16; ++looks) {
      const std::vector<RoomView> rooms = parts_.core.ListRooms(after, size, parts_.loop.Now());
      for (const RoomView& room : rooms) {
        after = room.room;
        const auto& states = request.states();
        if (states.empty() ||
            std::ranges::find(states, static_cast<int>(room.state)) != states.end()) {
          agent::ToProto(room, *response.add_rooms());
        }
        if (response.rooms_size() == size) break;
      }
      if (response.rooms_size() == size) break;  // there may be more behind, in this look too
      if (std::ssize(rooms) < size) return;
    }
    response.set_next_page_token(absl::StrCat(after->id.value(), ":", after->attempt.value()));
  }

  EngineServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeEngineService(const EngineServiceParts& parts) {
  return std::make_unique<EngineService>(parts);
}

}  // namespace pageferry::agent
