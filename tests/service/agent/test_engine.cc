#include "tests/service/agent/test_engine.h"

#include <fcntl.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "libs/common/grpc_runtime.h"
#include "libs/common/grpc_status.h"
#include "libs/common/release_later.h"
#include "pageferry/agent/v1/agent.grpc.pb.h"

namespace pageferry::agent {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

template <class Response, class Method, class Stub, class Request>
absl::StatusOr<Response> Unary(Method method, Stub& stub, const Request& request) {
  grpc::ClientContext context;
  Response response;
  absl::Status status = FromGrpcStatus((stub.*method)(&context, request, &response));
  if (!status.ok()) return status;
  return response;
}

using Stub = pb::TransferAgent::Stub;

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return condition();
}

struct TestEngine::Impl {
  explicit Impl(const std::string& address)
      : channel(MakeChannel(address)), stub(pb::TransferAgent::NewStub(channel)) {}

  void Join() {
    if (reader.joinable()) reader.join();
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Stub> stub;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientReaderWriter<pb::SessionRequest, pb::SessionResponse>> stream;
  std::thread reader;
  absl::Mutex mutex;
  std::deque<pb::AgentEvent> events;
  bool ended = false;
  absl::Status status;
  std::vector<std::pair<void*, size_t>> mappings;
};

TestEngine::TestEngine(const std::string& address) : impl_(std::make_unique<Impl>(address)) {}
TestEngine::TestEngine(TestEngine&&) noexcept = default;

TestEngine::~TestEngine() {
  if (impl_ == nullptr) return;
  if (impl_->context != nullptr) impl_->context->TryCancel();
  impl_->Join();
  for (const auto& [address, size] : impl_->mappings) munmap(address, size);
}

absl::StatusOr<pb::CreatePoolResponse> TestEngine::CreatePool(
    const pb::CreatePoolRequest& request) {
  return Unary<pb::CreatePoolResponse>(&Stub::CreatePool, *impl_->stub, request);
}

absl::StatusOr<MappedPool> TestEngine::CreatePool(const std::string& name, int64_t size) {
  pb::CreatePoolRequest request;
  request.set_name(name);
  request.set_size_bytes(size);
  request.set_memory_kind(pb::MEMORY_KIND_HOST_SHM);
  absl::StatusOr<pb::CreatePoolResponse> response = CreatePool(request);
  if (!response.ok()) return response.status();
  const pb::Pool& pool = response->pool();
  const int file = shm_open(pool.shm_name().c_str(), O_RDWR, 0);
  if (file < 0) return absl::ErrnoToStatus(errno, "shm_open");
  const auto bytes = static_cast<size_t>(pool.mapping_bytes());
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  impl_->mappings.emplace_back(mapped, bytes);
  return MappedPool{.name = name,
                    .data = static_cast<std::byte*>(mapped) + pool.data_offset_bytes(),
                    .size = pool.size_bytes(),
                    .adopted = response->adopted()};
}

absl::Status TestEngine::ReleasePool(const std::string& name) {
  pb::ReleasePoolRequest request;
  request.set_name(name);
  return Unary<pb::ReleasePoolResponse>(&Stub::ReleasePool, *impl_->stub, request).status();
}

absl::StatusOr<pb::ImportPoolResponse> TestEngine::ImportPool(
    const pb::ImportPoolRequest& request) {
  return Unary<pb::ImportPoolResponse>(&Stub::ImportPool, *impl_->stub, request);
}

absl::StatusOr<pb::RegisterEngineResponse> TestEngine::Register(
    const pb::RegisterEngineRequest& request) {
  return Unary<pb::RegisterEngineResponse>(&Stub::RegisterEngine, *impl_->stub, request);
}

absl::StatusOr<pb::GetAgentResponse> TestEngine::GetAgent() {
  return Unary<pb::GetAgentResponse>(&Stub::GetAgent, *impl_->stub, pb::GetAgentRequest());
}

absl::StatusOr<pb::ListRoomsResponse> TestEngine::ListRooms(const pb::ListRoomsRequest& request) {
  return Unary<pb::ListRoomsResponse>(&Stub::ListRooms, *impl_->stub, request);
}

absl::StatusOr<pb::GetRoomResponse> TestEngine::GetRoom(int64_t room) {
  pb::GetRoomRequest request;
  request.mutable_room()->set_room_id(room);
  return Unary<pb::GetRoomResponse>(&Stub::GetRoom, *impl_->stub, request);
}

absl::StatusOr<pb::AbortRoomResponse> TestEngine::AbortRoom(int64_t room) {
  pb::AbortRoomRequest request;
  request.mutable_room()->set_room_id(room);
  return Unary<pb::AbortRoomResponse>(&Stub::AbortRoom, *impl_->stub, request);
}

absl::StatusOr<pb::DrainResponse> TestEngine::Drain(absl::Duration timeout) {
  pb::DrainRequest request;
  request.mutable_timeout()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(timeout % absl::Seconds(1))));
  request.mutable_timeout()->set_seconds(absl::ToInt64Seconds(timeout));
  return Unary<pb::DrainResponse>(&Stub::Drain, *impl_->stub, request);
}

void TestEngine::StartSession() {
  Impl& impl = *impl_;
  if (impl.context != nullptr) impl.context->TryCancel();
  impl.Join();
  impl.context = std::make_unique<grpc::ClientContext>();
  impl.stream = impl.stub->Session(impl.context.get());
  impl.ended = false;
  impl.events.clear();
  impl.reader = std::thread([&impl] {
    pb::SessionResponse response;
    while (impl.stream->Read(&response)) {
      absl::MutexLock lock(&impl.mutex);
      for (const pb::AgentEvent& event : response.events()) impl.events.push_back(event);
    }
    const absl::Status status = FromGrpcStatus(impl.stream->Finish());
    absl::MutexLock lock(&impl.mutex);
    impl.ended = true;
    impl.status = status;
  });
}

void TestEngine::Open(const std::string& engine_id) {
  StartSession();
  pb::EngineCommand command;
  command.mutable_open()->set_engine_id(engine_id);
  command.mutable_open()->set_client("test");
  Send(command);
}

void TestEngine::Send(const pb::SessionRequest& request) { impl_->stream->Write(request); }

void TestEngine::Send(const pb::EngineCommand& command) {
  pb::SessionRequest request;
  *request.add_commands() = command;
  Send(request);
}

void TestEngine::CloseSession() {
  impl_->stream->WritesDone();
  impl_->Join();
}

void TestEngine::CancelSession() {
  impl_->context->TryCancel();
  impl_->Join();
}

absl::Status TestEngine::SessionStatus() {
  impl_->Join();
  absl::MutexLock lock(&impl_->mutex);
  return impl_->status;
}

std::optional<pb::AgentEvent> TestEngine::WaitFor(
    const std::function<bool(const pb::AgentEvent&)>& wanted) {
  std::optional<pb::AgentEvent> found;
  Eventually([&] {
    absl::MutexLock lock(&impl_->mutex);
    for (auto it = impl_->events.begin(); it != impl_->events.end(); ++it) {
      if (!wanted(*it)) continue;
      found = *it;
      impl_->events.erase(it);
      return true;
    }
    return impl_->ended;
  });
  return found;
}

std::optional<pb::RoomEvent> TestEngine::WaitForEnd(int64_t room) {
  const auto event = WaitFor([&](const pb::AgentEvent& e) {
    return e.has_room() && e.room().room().room_id() == room && e.room().drained();
  });
  if (!event.has_value()) return std::nullopt;
  return event->room();
}

std::optional<pb::RoomEvent> TestEngine::WaitForFailure(int64_t room) {
  const auto event = WaitFor([&](const pb::AgentEvent& e) {
    return e.has_room() && e.room().room().room_id() == room &&
           e.room().state() == pb::ROOM_STATE_FAILED;
  });
  if (!event.has_value()) return std::nullopt;
  return event->room();
}

topology_pb::PageRun PagesAt(int64_t first, int64_t count) {
  topology_pb::PageRun run;
  run.set_first(first);
  run.set_count(count);
  return run;
}

pb::EngineCommand OpenSendOf(int64_t room, int32_t attempt) {
  pb::EngineCommand command;
  command.mutable_open_send()->mutable_room()->set_room_id(room);
  command.mutable_open_send()->mutable_room()->set_attempt(attempt);
  return command;
}

pb::EngineCommand ChunkOf(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                          int64_t position, bool last, int64_t aux_slot) {
  pb::EngineCommand command;
  pb::SendChunk& chunk = *command.mutable_send_chunk();
  chunk.mutable_room()->set_room_id(room);
  for (const auto& [first, count] : runs) *chunk.add_page_runs() = PagesAt(first, count);
  chunk.set_first_position(position);
  chunk.set_last(last);
  if (aux_slot >= 0) chunk.set_aux_slot(aux_slot);
  return command;
}

pb::EngineCommand OpenReceiveOf(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                                int64_t aux_slot, int64_t prefix) {
  pb::EngineCommand command;
  pb::OpenReceive& receive = *command.mutable_open_receive();
  receive.mutable_room()->set_room_id(room);
  receive.mutable_room()->set_attempt(1);
  receive.set_prefill_engine_id("prefill-0");
  for (const auto& [first, count] : runs) *receive.add_page_runs() = PagesAt(first, count);
  if (aux_slot >= 0) receive.set_aux_slot(aux_slot);
  receive.set_cached_prefix_pages(prefix);
  return command;
}

pb::EngineCommand AbortOf(int64_t room) {
  pb::EngineCommand command;
  command.mutable_abort()->mutable_room()->set_room_id(room);
  command.mutable_abort()->set_detail("by the test");
  return command;
}

}  // namespace pageferry::agent
