#include "tests/service/agent/agent_fixture.h"

#include <fcntl.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "libs/common/grpc_runtime.h"
#include "libs/common/grpc_status.h"
#include "libs/common/release_later.h"
#include "pageferry/agent/v1/agent.grpc.pb.h"
#include "pageferry/peer/v1/peer.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::agent {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

template <class Response, class Method, class Stub, class Request>
absl::StatusOr<Response> Unary(Method method, Stub& stub, const Request& request) {
  grpc::ClientContext context;
  Response response;
  const absl::Status status = FromGrpcStatus((stub.*method)(&context, request, &response));
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

absl::Status TestEngine::ImportPool() {
  return Unary<pb::ImportPoolResponse>(&Stub::ImportPool, *impl_->stub, pb::ImportPoolRequest())
      .status();
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

struct RawPeer::Impl {
  explicit Impl(const std::string& address)
      : channel(MakeChannel(address)), stub(peer_pb::PeerTransfer::NewStub(channel)) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    stream = stub->Session(&context);
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<peer_pb::PeerTransfer::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<peer_pb::DecodeFrame, peer_pb::PrefillFrame>> stream;
  bool finished = false;
};

RawPeer::RawPeer(const std::string& address) : impl_(std::make_unique<Impl>(address)) {}

RawPeer::~RawPeer() {
  if (impl_->finished) return;
  impl_->context.TryCancel();
  static_cast<void>(Finish());
}

bool RawPeer::Send(const peer_pb::DecodeFrame& frame) { return impl_->stream->Write(frame); }

std::optional<peer_pb::PrefillFrame> RawPeer::Receive() {
  peer_pb::PrefillFrame frame;
  if (!impl_->stream->Read(&frame)) return std::nullopt;
  return frame;
}

absl::Status RawPeer::Finish() {
  impl_->finished = true;
  impl_->stream->WritesDone();
  peer_pb::PrefillFrame frame;
  while (impl_->stream->Read(&frame)) {
  }
  return FromGrpcStatus(impl_->stream->Finish());
}

void RawPeer::Cancel() { impl_->context.TryCancel(); }

absl::Status RawPeer::TryData(const std::string& address) {
  const auto stub = peer_pb::PeerTransfer::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  const auto stream = stub->Data(&context);
  peer_pb::DataResponse response;
  while (stream->Read(&response)) {
  }
  return FromGrpcStatus(stream->Finish());
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
  chunk.set_aux_slot(aux_slot);
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
  receive.set_aux_slot(aux_slot);
  receive.set_cached_prefix_pages(prefix);
  return command;
}

pb::EngineCommand AbortOf(int64_t room) {
  pb::EngineCommand command;
  command.mutable_abort()->mutable_room()->set_room_id(room);
  command.mutable_abort()->set_detail("by the test");
  return command;
}

AgentTest::AgentTest() {
  std::string name = testing::TempDir() + "pageferry-agent-XXXXXX";
  folder_ = mkdtemp(name.data());
  run_ = absl::StrCat("t", getpid(), "-", absl::Hex(RandomSeed() & 0xffff'ffff));
}

AgentTest::~AgentTest() {
  FlushReleases();
  std::filesystem::remove_all(folder_);
}

void AgentTest::StartBootstrap() {
  bootstrap::ServerOptions options;
  options.listen = absl::StrCat("127.0.0.1:", bootstrap_port_);
  options.health_listen = options.metrics_listen = "none";
  options.default_lease_ttl = absl::Seconds(1);
  auto server = bootstrap::BootstrapServer::Start(options);
  ASSERT_THAT(server, IsOk());
  bootstrap_.emplace(*std::move(server));
  bootstrap_port_ = bootstrap_->port();
}

std::string AgentTest::engine_socket(const std::string& name) const {
  return absl::StrCat("unix:", folder_, "/", name, ".sock");
}

AgentOptions AgentTest::OptionsOf(const std::string& name) const {
  AgentOptions options;
  options.engine_listen = {engine_socket(name)};
  options.health_listen = options.metrics_listen = "none";
  options.bootstrap = {absl::StrCat("127.0.0.1:", bootstrap_port_)};
  options.agent_id = absl::StrCat(run_, "-", name);
  options.copy_threads = 1;
  options.lease_ttl = absl::Seconds(1);
  options.pool_grace = absl::Seconds(1);
  options.resolve_timeout = absl::Seconds(5);
  options.drain_timeout = absl::Seconds(1);
  options.backoff = {.initial = absl::Milliseconds(50), .max = absl::Milliseconds(500)};
  return options;
}

pb::RegisterEngineRequest AgentTest::EngineOf(const std::string& id, topology_pb::Role role) {
  pb::RegisterEngineRequest request;
  request.set_engine_id(id);
  request.set_role(role);
  request.mutable_shape()->set_dp(1);
  request.mutable_shape()->set_cp(1);
  request.mutable_shape()->set_tp(1);
  request.mutable_shape()->set_pp(1);
  request.mutable_coordinate();
  topology_pb::KvProfile& profile = *request.mutable_profile();
  profile.set_page_tokens(16);
  profile.set_data_type(topology_pb::DATA_TYPE_FLOAT16);
  profile.set_layout(topology_pb::KV_LAYOUT_NHD);
  profile.set_attention(topology_pb::ATTENTION_KIND_MHA);
  profile.set_total_kv_heads(2);
  profile.set_rank_kv_heads(2);
  profile.set_head_dim(64);
  for (int i = 0; i < kEntries; ++i) {
    topology_pb::Entry& entry = *profile.add_entries();
    entry.set_layer(i / 2);
    entry.set_kind(i % 2 == 0 ? topology_pb::ENTRY_KIND_K : topology_pb::ENTRY_KIND_V);
    entry.set_pool_name("kv");
    entry.set_offset_bytes(i * kPages * kPageBytes);
    entry.set_item_bytes(kPageBytes);
    entry.set_page_count(kPages);
  }
  topology_pb::AuxBuffer& aux = *profile.add_aux();
  aux.set_name("first_token");
  aux.set_pool_name("kv");
  aux.set_offset_bytes(kEntries * kPages * kPageBytes);
  aux.set_item_bytes(kSlotBytes);
  aux.set_slot_count(kSlots);
  return request;
}

peer_pb::DecodeFrame AgentTest::HelloOf(const Agent& prefill, int64_t expected_epoch) {
  peer_pb::DecodeFrame frame;
  frame.set_epoch(7);
  peer_pb::Hello& hello = *frame.mutable_hello();
  hello.set_session_id("raw");
  hello.set_protocol_min(1);
  hello.set_protocol_max(1);
  hello.mutable_agent()->set_agent_id("raw-decode");
  hello.mutable_agent()->set_epoch(7);
  hello.mutable_expected()->set_agent_id(prefill.id());
  hello.mutable_expected()->set_epoch(expected_epoch);
  const pb::RegisterEngineRequest engine = EngineOf("raw-0", topology_pb::ROLE_DECODE);
  hello.mutable_engine()->set_namespace_("default");
  hello.mutable_engine()->set_engine_id("raw-0");
  hello.mutable_engine()->set_role(engine.role());
  *hello.mutable_engine()->mutable_shape() = engine.shape();
  *hello.mutable_engine()->mutable_coordinate() = engine.coordinate();
  *hello.mutable_engine()->mutable_profile() = engine.profile();
  for (auto& entry : *hello.mutable_engine()->mutable_profile()->mutable_entries()) {
    entry.clear_pool_name();
    entry.set_region_id(1);
  }
  for (auto& aux : *hello.mutable_engine()->mutable_profile()->mutable_aux()) {
    aux.clear_pool_name();
    aux.set_region_id(1);
  }
  hello.set_host_id(HostId("/dev/shm"));
  hello.add_transports()->set_kind(peer_pb::TRANSPORT_KIND_LOCAL);
  peer_pb::Region& region = *hello.add_regions();
  region.set_region_id(1);
  region.set_size_bytes(kPoolBytes);
  return frame;
}

void PairTest::SetUp() {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(prefill_agent_, StartAgent("prefill"));
  ASSERT_OK_AND_ASSIGN(decode_agent_, StartAgent("decode"));
  prefill_.emplace(engine_socket("prefill"));
  decode_.emplace(engine_socket("decode"));
  ASSERT_OK_AND_ASSIGN(source_, prefill_->CreatePool("kv", kPoolBytes));
  ASSERT_OK_AND_ASSIGN(target_, decode_->CreatePool("kv", kPoolBytes));
  ASSERT_THAT(prefill_->Register(EngineOf("prefill-0", topology_pb::ROLE_PREFILL)), IsOk());
  ASSERT_THAT(decode_->Register(EngineOf("decode-0", topology_pb::ROLE_DECODE)), IsOk());
  prefill_->Open("prefill-0");
  decode_->Open("decode-0");
  const auto opened = [](const pb::AgentEvent& event) { return event.has_opened(); };
  ASSERT_TRUE(prefill_->WaitFor(opened).has_value());
  ASSERT_TRUE(decode_->WaitFor(opened).has_value());
}

void PairTest::TearDown() {
  prefill_.reset();
  decode_.reset();
  decode_agent_.reset();
  prefill_agent_.reset();
}

std::byte PairTest::Pattern(int64_t room, int entry, int64_t position, int64_t offset) {
  return static_cast<std::byte>(
      (room * 31 + entry * 7 + position * 3 + offset * 11 + offset / 251) % 255);
}

void PairTest::FillSource(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                          int64_t aux_slot) {
  for (int entry = 0; entry < kEntries; ++entry) {
    int64_t position = 0;
    for (const auto& [first, count] : runs) {
      for (int64_t page = first; page < first + count; ++page, ++position) {
        std::byte* const at = source_.data + (entry * kPages + page) * kPageBytes;
        for (int64_t i = 0; i < kPageBytes; ++i) at[i] = Pattern(room, entry, position, i);
      }
    }
  }
  std::byte* const aux = source_.data + kEntries * kPages * kPageBytes + aux_slot * kSlotBytes;
  for (int64_t i = 0; i < kSlotBytes; ++i) aux[i] = Pattern(room, 99, 0, i);
}

bool PairTest::TargetHolds(int64_t room, const std::vector<std::pair<int64_t, int64_t>>& runs,
                           int64_t aux_slot, int64_t prefix) {
  for (int entry = 0; entry < kEntries; ++entry) {
    int64_t position = prefix;
    for (const auto& [first, count] : runs) {
      for (int64_t page = first; page < first + count; ++page, ++position) {
        const std::byte* const at = target_.data + (entry * kPages + page) * kPageBytes;
        for (int64_t i = 0; i < kPageBytes; ++i) {
          if (at[i] != Pattern(room, entry, position, i)) return false;
        }
      }
    }
  }
  const std::byte* const aux =
      target_.data + kEntries * kPages * kPageBytes + aux_slot * kSlotBytes;
  for (int64_t i = 0; i < kSlotBytes; ++i) {
    if (aux[i] != Pattern(room, 99, 0, i)) return false;
  }
  return true;
}

void PairTest::ClearTarget() { std::memset(target_.data, 0xff, static_cast<size_t>(kPoolBytes)); }

}  // namespace pageferry::agent
