#include "tools/pageferryctl/client.h"

#include <grpc/support/time.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <utility>

#include "absl/synchronization/notification.h"
#include "libs/common/grpc_runtime.h"
#include "libs/common/grpc_status.h"
#include "pageferry/agent/v1/agent.grpc.pb.h"
#include "pageferry/bootstrap/v1/bootstrap.grpc.pb.h"

namespace pageferry::ctl {
namespace {

namespace agent_pb = agent::v1;
namespace bootstrap_pb = bootstrap::v1;

constexpr int kPageSize = 1000;
// Rooms that were aborted may take 3 s to drain, and giving the cell up 2 s.
constexpr absl::Duration kDrainGrace = absl::Seconds(6);
constexpr absl::Duration kLook = absl::Milliseconds(20);

/// The one place where a channel is made, and so where its credentials go.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const Calling& calling) {
  ChannelOptions options;
  options.connect_timeout = calling.timeout;
  options.credentials.tls = calling.tls;
  // A page of engines or the ranks of a large one may be above 4 MiB where the service allows it.
  options.max_message_bytes = ByteCount(64 << 20);
  return pageferry::MakeChannel(address, options);
}

void SetTimeout(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN));
}

/// One unary call of `method`, such as &Stub::GetAgent.
template <class Response, class Stub, class Method, class Request>
absl::StatusOr<Response> Call(Stub& stub, Method method, const Request& request,
                              absl::Duration timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  Response response;
  absl::Status status = FromGrpcStatus((stub.*method)(&context, request, &response));
  if (!status.ok()) return status;
  return response;
}

agent_pb::DrainRequest DrainRequestOf(absl::Duration limit, bool deregister) {
  agent_pb::DrainRequest request;
  absl::Duration rest;
  request.mutable_timeout()->set_seconds(absl::IDivDuration(limit, absl::Seconds(1), &rest));
  request.mutable_timeout()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  request.set_deregister(deregister);
  return request;
}

}  // namespace

struct BootstrapCalls::Impl {
  using Stub = bootstrap_pb::Bootstrap::Stub;
  std::unique_ptr<Stub> stub;
  absl::Duration timeout;
};

BootstrapCalls::BootstrapCalls(const std::string& address, const Calling& calling)
    : impl_(std::make_unique<Impl>()) {
  impl_->stub = bootstrap_pb::Bootstrap::NewStub(MakeChannel(address, calling));
  impl_->timeout = calling.timeout;
}

BootstrapCalls::~BootstrapCalls() = default;

absl::StatusOr<bootstrap_pb::ListEnginesResponse> BootstrapCalls::ListEngines(
    const std::string& name_space) {
  bootstrap_pb::ListEnginesRequest request;
  request.set_namespace_(name_space);
  request.set_page_size(kPageSize);
  bootstrap_pb::ListEnginesResponse all;
  do {
    absl::StatusOr<bootstrap_pb::ListEnginesResponse> page =
        Call<bootstrap_pb::ListEnginesResponse>(*impl_->stub, &Impl::Stub::ListEngines, request,
                                                impl_->timeout);
    if (!page.ok()) return page.status();
    request.set_page_token(page->next_page_token());
    all.MergeFrom(*page);
    // Merging keeps what an empty field of the later page would replace.
    all.set_next_page_token("");
    all.set_version(page->version());
  } while (!request.page_token().empty());
  return all;
}

absl::StatusOr<bootstrap_pb::GetEngineResponse> BootstrapCalls::GetEngine(
    const std::string& name_space, const std::string& engine) {
  bootstrap_pb::GetEngineRequest request;
  request.mutable_engine()->set_namespace_(name_space);
  request.mutable_engine()->set_engine_id(engine);
  request.set_include_ranks(true);
  return Call<bootstrap_pb::GetEngineResponse>(*impl_->stub, &Impl::Stub::GetEngine, request,
                                               impl_->timeout);
}

struct AgentCalls::Impl {
  using Stub = agent_pb::TransferAgent::Stub;
  std::unique_ptr<Stub> stub;
  absl::Duration timeout;
};

AgentCalls::AgentCalls(const std::string& target, const Calling& calling)
    : impl_(std::make_unique<Impl>()) {
  impl_->stub = agent_pb::TransferAgent::NewStub(MakeChannel(target, calling));
  impl_->timeout = calling.timeout;
}

AgentCalls::~AgentCalls() = default;

absl::StatusOr<agent_pb::GetAgentResponse> AgentCalls::GetAgent() {
  return Call<agent_pb::GetAgentResponse>(*impl_->stub, &Impl::Stub::GetAgent,
                                          agent_pb::GetAgentRequest(), impl_->timeout);
}

absl::StatusOr<std::vector<agent_pb::RoomInfo>> AgentCalls::ListRooms(
    const std::vector<int>& states) {
  agent_pb::ListRoomsRequest request;
  request.set_page_size(kPageSize);
  request.mutable_states()->Add(states.begin(), states.end());
  std::vector<agent_pb::RoomInfo> rooms;
  do {
    absl::StatusOr<agent_pb::ListRoomsResponse> page = Call<agent_pb::ListRoomsResponse>(
        *impl_->stub, &Impl::Stub::ListRooms, request, impl_->timeout);
    if (!page.ok()) return page.status();
    rooms.reserve(rooms.size() + static_cast<size_t>(page->rooms_size()));
    for (agent_pb::RoomInfo& room : *page->mutable_rooms()) rooms.push_back(std::move(room));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return rooms;
}

absl::StatusOr<agent_pb::RoomInfo> AgentCalls::GetRoom(const agent_pb::RoomRef& room) {
  agent_pb::GetRoomRequest request;
  *request.mutable_room() = room;
  auto response =
      Call<agent_pb::GetRoomResponse>(*impl_->stub, &Impl::Stub::GetRoom, request, impl_->timeout);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_room());
}

absl::StatusOr<agent_pb::RoomInfo> AgentCalls::AbortRoom(const agent_pb::RoomRef& room,
                                                         const std::string& detail) {
  agent_pb::AbortRoomRequest request;
  *request.mutable_room() = room;
  request.set_detail(detail);
  auto response = Call<agent_pb::AbortRoomResponse>(*impl_->stub, &Impl::Stub::AbortRoom, request,
                                                    impl_->timeout);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_room());
}

absl::StatusOr<agent_pb::DrainResponse> AgentCalls::Drain(absl::Duration limit, bool deregister) {
  return Call<agent_pb::DrainResponse>(*impl_->stub, &Impl::Stub::Drain,
                                       DrainRequestOf(limit, deregister),
                                       limit + kDrainGrace + impl_->timeout);
}

absl::Status AgentCalls::BeginDrain(absl::Duration limit, bool deregister) {
  const agent_pb::DrainRequest request = DrainRequestOf(limit, deregister);
  agent_pb::DrainResponse response;
  grpc::ClientContext context;
  SetTimeout(context, impl_->timeout);
  absl::Notification ended;
  grpc::Status status;
  impl_->stub->async()->Drain(&context, &request, &response, [&](grpc::Status result) {
    status = std::move(result);
    ended.Notify();
  });
  // The call answers at its end only; that it has begun shows in the state of the agent.
  while (!ended.WaitForNotificationWithTimeout(kLook)) {
    const absl::StatusOr<agent_pb::GetAgentResponse> agent = GetAgent();
    if (!agent.ok() || agent->state() != agent_pb::AGENT_STATE_DRAINING) continue;
    context.TryCancel();
    ended.WaitForNotification();
    return absl::OkStatus();
  }
  return FromGrpcStatus(status);
}

}  // namespace pageferry::ctl
