// Imported pools, huge pages and locked pools over a real socket; rooms through such pools are in
// tests/integration/test_pools.py.
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "libs/transport/memlock.h"
#include "libs/transport/pool_layout.h"
#include "tests/service/agent/agent_fixture.h"
#include "tests/testing/mlock_is_real.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::agent {
namespace {

class AgentPoolsTest : public AgentTest {
 protected:
  AgentPoolsTest() : memory_(memfd_create("engine", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(memory_, kPoolBytes), 0);
  }
  ~AgentPoolsTest() override { close(memory_); }

  pb::ImportPoolRequest Request() const {
    pb::ImportPoolRequest request;
    request.set_name("kv");
    request.set_size_bytes(kPoolBytes);
    request.set_memory_kind(pb::MEMORY_KIND_HOST_SHM);
    request.set_memory_file(absl::StrCat("/proc/", getpid(), "/fd/", memory_));
    return request;
  }
  static bool IsThere(const pb::Pool& pool) {
    return access(absl::StrCat("/dev/shm", pool.shm_name()).c_str(), F_OK) == 0;
  }

  const int memory_;
};

TEST_F(AgentPoolsTest, I6_BadImportsAreRefusedAndNamed) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  const auto refusal = [&](const std::function<void(pb::ImportPoolRequest&)>& change) {
    pb::ImportPoolRequest request = Request();
    change(request);
    return engine.ImportPool(request).status();
  };
  const auto field = [&](const std::function<void(pb::ImportPoolRequest&)>& change) {
    return MetadataOf(refusal(change))["field"];
  };
  EXPECT_EQ(field([](auto& r) { r.set_name("../x"); }), "name");
  EXPECT_EQ(field([](auto& r) { r.set_size_bytes(-1); }), "size_bytes");
  EXPECT_EQ(field([](auto& r) { r.set_device(1); }), "device");
  EXPECT_EQ(field([](auto& r) { r.clear_handle(); }), "handle");
  EXPECT_EQ(field([](auto& r) { r.set_shm_name(""); }), "handle");
  EXPECT_EQ(field([](auto& r) { r.set_device_handle("x"); }), "handle");
  EXPECT_EQ(field([](auto& r) { r.set_data_offset_bytes(-4096); }), "data_offset_bytes");
  EXPECT_EQ(field([](auto& r) { r.set_data_offset_bytes(17); }), "data_offset_bytes");
  EXPECT_THAT(refusal([](auto& r) { r.set_memory_kind(pb::MEMORY_KIND_UNSPECIFIED); }),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownEnum));
  EXPECT_THAT(refusal([](auto& r) { r.set_memory_kind(pb::MEMORY_KIND_CUDA); }),
              StatusIs(absl::StatusCode::kUnimplemented, Reason::kUnsupported));
  EXPECT_THAT(refusal([](auto& r) { r.set_memory_file(std::string(5000, '/')); }),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kTooLarge));
  EXPECT_THAT(refusal([](auto& r) { r.set_shm_name(std::string(256, 'a')); }),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kTooLarge));
  for (const char* const path : {"/dev/zero", "/proc/self/fd/0", "x", "/dev/shm", "/dev/shm/no"}) {
    const absl::Status bad = refusal([&](auto& r) { r.set_memory_file(path); });
    EXPECT_THAT(bad, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadHandle)) << path;
    EXPECT_EQ(MetadataOf(bad)["handle"], path);
  }
  EXPECT_THAT(refusal([](auto& r) { r.set_size_bytes(kPoolBytes + 1); }),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadHandle));
  EXPECT_EQ(engine.GetAgent()->pools_size(), 0);
}

TEST_F(AgentPoolsTest, AnImportedPoolIsToldAndGoesWhenItIsReleased) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  pb::ImportPoolRequest request = Request();
  request.set_read_only(true);
  ASSERT_OK_AND_ASSIGN(const pb::ImportPoolResponse response, engine.ImportPool(request));
  const pb::Pool& pool = response.pool();
  EXPECT_TRUE(pool.imported());
  EXPECT_TRUE(pool.read_only());
  EXPECT_EQ(pool.size_bytes(), kPoolBytes);
  EXPECT_EQ(pool.mapping_bytes(), transport::kPoolDataOffset);
  EXPECT_EQ(pool.data_offset_bytes(), transport::kPoolDataOffset);
  EXPECT_TRUE(IsThere(pool));
  ASSERT_OK_AND_ASSIGN(const pb::ImportPoolResponse again, engine.ImportPool(request));
  EXPECT_EQ(again.pool().SerializeAsString(), pool.SerializeAsString());
  ASSERT_EQ(engine.GetAgent()->pools_size(), 1);
  EXPECT_TRUE(engine.GetAgent()->pools(0).imported());
  EXPECT_THAT(engine.CreatePool("kv", kPoolBytes),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kPoolExists));
  EXPECT_THAT(engine.Register(EngineOf("e", topology_pb::ROLE_DECODE)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField));
  EXPECT_THAT(engine.ReleasePool("kv"), IsOk());
  ASSERT_TRUE(Eventually([&] { return !IsThere(pool); }));
}

TEST_F(AgentPoolsTest, HugePagesAreToldAsTheyWereGot) {
  StartBootstrap();
  ASSERT_OK_AND_ASSIGN(Agent agent, StartAgent("a"));
  TestEngine engine(engine_socket("a"));
  constexpr int64_t kHuge = int64_t{2} << 20;
  pb::CreatePoolRequest request;
  request.set_name("kv");
  request.set_size_bytes(kHuge + 1);
  request.set_memory_kind(pb::MEMORY_KIND_HOST_SHM);
  request.set_prefer_huge_pages(true);
  ASSERT_OK_AND_ASSIGN(const pb::CreatePoolResponse preferred, engine.CreatePool(request));
  const pb::Pool& pool = preferred.pool();
  EXPECT_EQ(pool.size_bytes(), 2 * kHuge);
  const bool all = pool.huge_bytes() == 2 * kHuge;
  EXPECT_EQ(pool.memory_kind(), all ? pb::MEMORY_KIND_HOST_SHM_HUGE : pb::MEMORY_KIND_HOST_SHM);
  EXPECT_EQ(pool.huge_pages_note().empty(), all) << pool.huge_pages_note();
  request.set_memory_kind(pb::MEMORY_KIND_HOST_SHM_HUGE);
  request.set_name("must");
  const absl::StatusOr<pb::CreatePoolResponse> must = engine.CreatePool(request);
  if (must.ok()) {
    EXPECT_EQ(must->pool().huge_bytes(), 2 * kHuge);
  } else {
    EXPECT_THAT(must, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory));
    EXPECT_EQ(MetadataOf(must.status())["needed_bytes"], absl::StrCat(2 * kHuge));
  }
}

TEST_F(AgentPoolsTest, LockedPoolsAreLocked) {
  if (!MlockIsReal()) GTEST_SKIP() << "mlock() locks nothing in this process";
  StartBootstrap();
  AgentOptions options = OptionsOf("a");
  options.lock_pools = true;
  ASSERT_OK_AND_ASSIGN(Agent agent, Agent::Start(options));
  TestEngine engine(engine_socket("a"));
  const transport::MemlockState before = transport::ReadMemlock();
  const bool allowed = transport::CheckMemlock(ByteCount(2 * kPoolBytes), before).ok();
  const absl::StatusOr<MappedPool> made = engine.CreatePool("kv", kPoolBytes);
  if (!allowed) GTEST_SKIP() << made.status();
  ASSERT_THAT(made, IsOk());
  EXPECT_GE(transport::ReadMemlock().locked, before.locked + ByteCount(kPoolBytes));
}

}  // namespace
}  // namespace pageferry::agent
