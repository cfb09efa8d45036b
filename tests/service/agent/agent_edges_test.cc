// What the agent's edges refuse, and what an engine's stream may and may not do.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/service/agent/agent_fixture.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::agent {
namespace {

using Request = pb::RegisterEngineRequest;

std::string FieldOf(const absl::Status& status) {
  const ErrorMetadata metadata = MetadataOf(status);
  const auto found = metadata.find("field");
  return found == metadata.end() ? "" : found->second;
}

TEST_F(AgentTest, TellsAboutItself) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  ASSERT_OK_AND_ASSIGN(pb::GetAgentResponse idle, engine.GetAgent());
  EXPECT_EQ(idle.agent().agent_id(), agent.id());
  EXPECT_EQ(idle.state(), pb::AGENT_STATE_IDLE);
  EXPECT_EQ(idle.peer_endpoint().port(), agent.peer_port());
  EXPECT_THAT(idle.transports(), testing::ElementsAre("local"));
  ASSERT_OK_AND_ASSIGN(const MappedPool pool, engine.CreatePool("kv", kPoolBytes));
  EXPECT_FALSE(pool.adopted);
  ASSERT_OK_AND_ASSIGN(const pb::RegisterEngineResponse registered,
                       engine.Register(EngineOf("e", topology_pb::ROLE_PREFILL)));
  EXPECT_GT(registered.agent().epoch(), 0);
  ASSERT_OK_AND_ASSIGN(const pb::GetAgentResponse ready, engine.GetAgent());
  EXPECT_EQ(ready.state(), pb::AGENT_STATE_READY);
  EXPECT_TRUE(ready.lease().live());
  EXPECT_EQ(ready.engine().engine_id(), "e");
  ASSERT_EQ(ready.pools_size(), 1);
  EXPECT_EQ(ready.pools(0).size_bytes(), (kPoolBytes + 4095) / 4096 * 4096);
}

TEST_F(AgentTest, I6_RefusesEachBadFieldOfARegistration) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  ASSERT_THAT(engine.CreatePool("kv", kPoolBytes), IsOk());
  struct Case {
    std::string field;
    Reason reason;
    std::function<void(Request&)> spoil;
  };
  const std::vector<Case> cases = {
      {"engine_id", Reason::kInvalidField, [](Request& r) { r.set_engine_id("a b"); }},
      {"namespace", Reason::kInvalidField, [](Request& r) { r.set_namespace_("A"); }},
      {"role", Reason::kUnknownEnum, [](Request& r) { r.clear_role(); }},
      {"layer_count", Reason::kInvalidField, [](Request& r) { r.set_layer_count(-1); }},
      {"profile.page_tokens", Reason::kInvalidField,
       [](Request& r) { r.mutable_profile()->set_page_tokens(0); }},
      {"profile.data_type", Reason::kUnknownEnum,
       [](Request& r) { r.mutable_profile()->clear_data_type(); }},
      {"profile.layout", Reason::kUnknownEnum,
       [](Request& r) { r.mutable_profile()->clear_layout(); }},
      {"profile.attention", Reason::kUnknownEnum,
       [](Request& r) { r.mutable_profile()->clear_attention(); }},
      {"profile.total_kv_heads", Reason::kInvalidField,
       [](Request& r) { r.mutable_profile()->set_total_kv_heads(0); }},
      {"profile.head_dim", Reason::kInvalidField,
       [](Request& r) { r.mutable_profile()->set_head_dim(65'537); }},
      {"profile.entries", Reason::kInvalidField,
       [](Request& r) { r.mutable_profile()->clear_entries(); }},
      {"profile.entries[1].kind", Reason::kUnknownEnum,
       [](Request& r) { r.mutable_profile()->mutable_entries(1)->clear_kind(); }},
      {"profile.entries[2].item_bytes", Reason::kInvalidField,
       [](Request& r) { r.mutable_profile()->mutable_entries(2)->set_item_bytes(0); }},
      {"profile.entries[2].page_count", Reason::kInvalidField,
       [](Request& r) { r.mutable_profile()->mutable_entries(2)->set_page_count(0); }},
      {"profile.entries[2].offset_bytes", Reason::kInvalidField,
       [](Request& r) { r.mutable_profile()->mutable_entries(2)->set_offset_bytes(-1); }},
      // Beyond the pool; the second only for who multiplies without care.
      {"profile.entries[3].offset_bytes", Reason::kInvalidField,
       [](Request& r) { r.mutable_profile()->mutable_entries(3)->set_page_count(66); }},
      {"profile.entries[3].offset_bytes", Reason::kInvalidField,
       [](Request& r) {
         r.mutable_profile()->mutable_entries(3)->set_offset_bytes(int64_t{1} << 62);
         r.mutable_profile()->mutable_entries(3)->set_item_bytes(int64_t{1} << 30);
         r.mutable_profile()->mutable_entries(3)->set_page_count(int64_t{1} << 31);
       }},
      {"profile.entries[1].layer", Reason::kInvalidField,
       [](Request& r) {
         r.mutable_profile()->mutable_entries(1)->set_kind(topology_pb::ENTRY_KIND_K);
       }},
      {"profile.aux[0].name", Reason::kInvalidField,
       [](Request& r) { r.mutable_profile()->mutable_aux(0)->set_name("A"); }},
      // Over the entry before.
      {"profile.entries[2].offset_bytes", Reason::kInvalidField,
       [](Request& r) {
         topology_pb::Entry& entry = *r.mutable_profile()->mutable_entries(2);
         entry.set_offset_bytes(entry.offset_bytes() - 1);
       }},
      {"profile.rank_kv_heads", Reason::kInvalidField,
       [](Request& r) {
         r.mutable_profile()->set_rank_kv_heads(r.profile().total_kv_heads() + 1);
       }},
      {"profile.aux[0].offset_bytes", Reason::kInvalidField,
       [](Request& r) {
         r.mutable_profile()->mutable_aux(0)->set_offset_bytes(kPoolBytes + 4096);
       }},
      {"profile.model_fingerprint", Reason::kTooLarge,
       [](Request& r) { r.mutable_profile()->set_model_fingerprint(std::string(257, 'x')); }},
  };
  for (const Case& bad : cases) {
    Request request = EngineOf("e", topology_pb::ROLE_PREFILL);
    bad.spoil(request);
    const absl::Status status = engine.Register(request).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, bad.reason)) << bad.field;
    EXPECT_EQ(FieldOf(status), bad.field) << status;
  }
  Request request = EngineOf("e", topology_pb::ROLE_PREFILL);
  request.mutable_coordinate()->set_tp(1);
  EXPECT_THAT(engine.Register(request),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
  request = EngineOf("e", topology_pb::ROLE_PREFILL);
  request.mutable_profile()->mutable_entries(0)->set_pool_name("other");
  EXPECT_THAT(engine.Register(request),
              StatusIs(absl::StatusCode::kNotFound, Reason::kPoolNotFound));
}

TEST_F(AgentTest, PoolsAreCheckedAndAdoptedAndReleased) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  pb::CreatePoolRequest request;
  request.set_name("kv");
  request.set_memory_kind(pb::MEMORY_KIND_HOST_SHM);
  request.set_size_bytes(4095);
  EXPECT_EQ(FieldOf(engine.CreatePool(request).status()), "size_bytes");
  request.set_size_bytes(int64_t{8} << 40);
  EXPECT_THAT(engine.CreatePool(request),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
  request.set_size_bytes(kPoolBytes);
  request.set_memory_kind(pb::MEMORY_KIND_CUDA);
  EXPECT_THAT(engine.CreatePool(request),
              StatusIs(absl::StatusCode::kUnimplemented, Reason::kUnsupported));
  request.set_memory_kind(pb::MEMORY_KIND_HOST_SHM);
  request.set_device(-7);
  EXPECT_EQ(FieldOf(engine.CreatePool(request).status()), "device");
  request.set_device(0);
  request.set_memory_kind(pb::MEMORY_KIND_UNSPECIFIED);
  EXPECT_THAT(engine.CreatePool(request),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownEnum));

  ASSERT_OK_AND_ASSIGN(const MappedPool first, engine.CreatePool("kv", kPoolBytes));
  std::memset(first.data, 0x5a, 4096);
  ASSERT_OK_AND_ASSIGN(const MappedPool again, engine.CreatePool("kv", kPoolBytes));
  EXPECT_TRUE(again.adopted);
  EXPECT_EQ(again.data[4095], std::byte{0x5a});
  EXPECT_THAT(engine.CreatePool("kv", 2 * kPoolBytes),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kPoolExists));
  ASSERT_THAT(engine.Register(EngineOf("e", topology_pb::ROLE_PREFILL)), IsOk());
  engine.Open("e");
  ASSERT_TRUE(engine.WaitFor([](const auto& e) { return e.has_opened(); }).has_value());
  EXPECT_THAT(engine.ReleasePool("kv"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInUse));
  EXPECT_THAT(engine.ReleasePool("other"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kPoolNotFound));
  ASSERT_THAT(engine.CreatePool("spare", 8192), IsOk());
  EXPECT_THAT(engine.ReleasePool("spare"), IsOk());
  // Without its session the engine is no longer in the way of one that wants another size.
  engine.CloseSession();
  EXPECT_THAT(engine.SessionStatus(), IsOk());
  ASSERT_TRUE(Eventually([&] { return engine.ReleasePool("kv").ok(); }));
  ASSERT_OK_AND_ASSIGN(const pb::GetAgentResponse now, engine.GetAgent());
  EXPECT_EQ(now.state(), pb::AGENT_STATE_IDLE);
  EXPECT_THAT(engine.CreatePool("kv", 2 * kPoolBytes), IsOk());
}

TEST_F(AgentTest, ARegistrationIsHeldUntilItsSessionEnds) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  ASSERT_THAT(engine.CreatePool("kv", kPoolBytes), IsOk());
  engine.Open("e");
  EXPECT_THAT(engine.SessionStatus(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kEngineNotRegistered));
  const Request request = EngineOf("e", topology_pb::ROLE_PREFILL);
  ASSERT_THAT(engine.Register(request), IsOk());
  ASSERT_THAT(engine.Register(request), IsOk());
  engine.Open("other");
  EXPECT_EQ(FieldOf(engine.SessionStatus()), "open.engine_id");
  engine.Open("e");
  ASSERT_TRUE(engine.WaitFor([](const auto& e) { return e.has_opened(); }).has_value());
  TestEngine second(engine_socket("a"));
  second.Open("e");
  EXPECT_THAT(second.SessionStatus(),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kEngineAlreadyRegistered));
  EXPECT_THAT(second.Register(EngineOf("f", topology_pb::ROLE_DECODE)),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kEngineAlreadyRegistered));
  engine.CloseSession();
  EXPECT_THAT(engine.SessionStatus(), IsOk());
  // Nobody is left: another engine takes its place.
  ASSERT_TRUE(
      Eventually([&] { return second.Register(EngineOf("f", topology_pb::ROLE_DECODE)).ok(); }));
  // It opens no session; the grace time of the one before was begun anew, then all goes.
  ASSERT_TRUE(Eventually([&] {
    const auto now = second.GetAgent();
    return now.ok() && now->state() == pb::AGENT_STATE_IDLE && now->pools_size() == 0;
  }));
}

TEST_F(AgentTest, I6_BadFramesEndTheSession) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  ASSERT_THAT(engine.CreatePool("kv", kPoolBytes), IsOk());
  ASSERT_THAT(engine.Register(EngineOf("e", topology_pb::ROLE_PREFILL)), IsOk());

  engine.StartSession();
  engine.Send(OpenSendOf(1));
  EXPECT_THAT(engine.SessionStatus(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder));
  engine.StartSession();
  engine.Send(pb::SessionRequest());
  EXPECT_THAT(engine.SessionStatus(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
  engine.Open("e");
  ASSERT_TRUE(engine.WaitFor([](const auto& e) { return e.has_opened(); }).has_value());
  pb::EngineCommand open;
  open.mutable_open()->set_engine_id("e");
  engine.Send(open);
  EXPECT_THAT(engine.SessionStatus(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kOutOfOrder));
}

TEST_F(AgentTest, RegistersInTheBackgroundWhileBootstrapIsAway) {
  StartBootstrap();
  StopBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  ASSERT_THAT(engine.CreatePool("kv", kPoolBytes), IsOk());
  ASSERT_OK_AND_ASSIGN(const pb::RegisterEngineResponse registered,
                       engine.Register(EngineOf("e", topology_pb::ROLE_DECODE)));
  EXPECT_EQ(registered.agent().epoch(), 0);
  engine.Open("e");
  const auto opened = engine.WaitFor([](const auto& e) { return e.has_opened(); });
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->opened().state(), pb::AGENT_STATE_REGISTERING);
  pb::EngineCommand receive = OpenReceiveOf(1, {{0, 1}}, 0);
  receive.mutable_open_receive()->mutable_timeout()->set_nanos(300'000'000);
  engine.Send(receive);
  const auto failed = engine.WaitForFailure(1);
  ASSERT_TRUE(failed.has_value());
  EXPECT_THAT(ReasonOf(FromErrorDetail(failed->error())),
              testing::AnyOf(Reason::kBootstrapUnreachable, Reason::kDeadline));
  StartBootstrap();
  const auto ready = engine.WaitFor([](const auto& e) {
    return e.has_agent_state() && e.agent_state().state() == pb::AGENT_STATE_READY;
  });
  ASSERT_TRUE(ready.has_value());
  EXPECT_GT(ready->agent_state().agent().epoch(), 0);
}

TEST_F(AgentTest, AYoungerAgentSupersedes) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent old_agent, StartAgent("old"));
  ASSERT_OK_AND_ASSIGN(Agent new_agent, StartAgent("new"));
  TestEngine old_engine(engine_socket("old"));
  TestEngine new_engine(engine_socket("new"));
  ASSERT_THAT(old_engine.CreatePool("kv", kPoolBytes), IsOk());
  ASSERT_THAT(new_engine.CreatePool("kv", kPoolBytes), IsOk());
  const Request request = EngineOf("e", topology_pb::ROLE_PREFILL);
  ASSERT_OK_AND_ASSIGN(const pb::RegisterEngineResponse older, old_engine.Register(request));
  old_engine.Open("e");
  ASSERT_OK_AND_ASSIGN(const pb::RegisterEngineResponse younger, new_engine.Register(request));
  EXPECT_GT(younger.agent().epoch(), older.agent().epoch());
  const auto superseded = old_engine.WaitFor([](const auto& e) {
    return e.has_agent_state() && e.agent_state().state() == pb::AGENT_STATE_SUPERSEDED;
  });
  ASSERT_TRUE(superseded.has_value());
  EXPECT_EQ(ReasonOf(FromErrorDetail(superseded->agent_state().error())), Reason::kSuperseded);
  EXPECT_THAT(old_engine.Register(EngineOf("f", topology_pb::ROLE_PREFILL)),
              HasReason(Reason::kSuperseded));
  // It stays so: the cell is not taken back.
  absl::SleepFor(absl::Seconds(1));
  ASSERT_OK_AND_ASSIGN(const pb::GetAgentResponse holder, new_engine.GetAgent());
  EXPECT_EQ(holder.state(), pb::AGENT_STATE_READY);
}

TEST_F(AgentTest, AnotherProfileIsRefusedByBootstrap) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent first_agent, StartAgent("first"));
  ASSERT_OK_AND_ASSIGN(Agent second_agent, StartAgent("second"));
  TestEngine first(engine_socket("first"));
  TestEngine second(engine_socket("second"));
  ASSERT_THAT(first.CreatePool("kv", kPoolBytes), IsOk());
  ASSERT_THAT(second.CreatePool("kv", kPoolBytes), IsOk());
  Request request = EngineOf("e", topology_pb::ROLE_PREFILL);
  request.mutable_shape()->set_dp(2);
  ASSERT_THAT(first.Register(request), IsOk());
  request.mutable_coordinate()->set_dp(1);
  request.mutable_profile()->set_page_tokens(32);
  EXPECT_THAT(second.Register(request),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kProfileMismatch));
  ASSERT_OK_AND_ASSIGN(const pb::GetAgentResponse idle, second.GetAgent());
  EXPECT_EQ(idle.state(), pb::AGENT_STATE_IDLE);
  request.mutable_profile()->set_page_tokens(16);
  EXPECT_THAT(second.Register(request), IsOk());
}

TEST_F(AgentTest, ATakenSocketIsAnErrorAndAStaleOneIsNot) {
  StartBootstrap();
  {
    ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
    EXPECT_THAT(StartAgent("a"), StatusIs(absl::StatusCode::kUnavailable, Reason::kInUse));
    TestEngine engine(engine_socket("a"));
    EXPECT_THAT(engine.GetAgent(), IsOk());
  }
  const std::string path = folder() + "/a.sock";
  EXPECT_FALSE(std::filesystem::exists(path));
  // As a killed process leaves it: bound, and nobody listens.
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(stale, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(stale);
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  EXPECT_THAT(engine.GetAgent(), IsOk());
}

TEST_F(AgentTest, BadOptionsAreRefused) {
  StartBootstrap();
  AgentOptions options = OptionsOf("a");
  options.peer_listen = "0.0.0.0:0";
  EXPECT_THAT(Agent::Start(options), HasReason(Reason::kPolicy));
  options.insecure = true;
  EXPECT_EQ(FieldOf(Agent::Start(options).status()), "advertise");
  options = OptionsOf("a");
  options.transports = {"rdma"};
  EXPECT_THAT(Agent::Start(options), HasReason(Reason::kUnsupported));
  options = OptionsOf("a");
  options.transports = {"local", "tcp"};
  options.tcp_device = "eth0";
  EXPECT_EQ(FieldOf(Agent::Start(options).status()), "tcp-device");
  options.allow_insecure_data_path = true;
  options.tcp_device = "nosuch0";
  EXPECT_THAT(Agent::Start(options), HasReason(Reason::kNoTransport));
  options = OptionsOf("a");
  options.require_transport = "tcp";
  EXPECT_EQ(FieldOf(Agent::Start(options).status()), "require-transport");
  options = OptionsOf("a");
  options.transports = {"tcp"};
  options.peer_listen = "0.0.0.0:0";
  options.insecure = true;
  options.advertise = "127.0.0.1:0";
  EXPECT_EQ(FieldOf(Agent::Start(options).status()), "tcp-device");
  options = OptionsOf("a");
  options.agent_id = "a b";
  EXPECT_EQ(FieldOf(Agent::Start(options).status()), "agent-id");
  options = OptionsOf("a");
  options.bootstrap.clear();
  EXPECT_EQ(FieldOf(Agent::Start(options).status()), "bootstrap");
}

}  // namespace
}  // namespace pageferry::agent
