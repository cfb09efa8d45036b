#include "tests/service/agent/agent_fixture.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "libs/common/release_later.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::agent {

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
      (room * 31 + int64_t{entry} * 7 + position * 3 + offset * 11 + offset / 251) % 255);
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
