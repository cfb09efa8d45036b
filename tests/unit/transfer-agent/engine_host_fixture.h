#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "libs/common/metrics.h"
#include "libs/transport/memory_file.h"
#include "libs/transport/pool_file.h"
#include "libs/transport/pool_layout.h"
#include "services/transfer-agent/engine_host.h"
#include "services/transfer-agent/worker.h"
#include "tests/fakes/fake_ports.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/transfer-agent/core_testing.h"
#include "tests/unit/transfer-agent/fake_bootstrap.h"
#include "tests/unit/transfer-agent/fake_loop.h"

namespace pageferry::agent {

inline constexpr PeerId kPeer{7};
inline constexpr ByteCount kPoolSize{64 << 10};
inline const absl::Status kCut = absl::CancelledError("the engine's process died");

class FakeEngineStream final : public EngineStream {
 public:
  bool Send(agent_pb::AgentEvent event) override {
    sent.push_back(std::move(event));
    return true;
  }
  void ReadNext() override { ++reads; }
  void End(const absl::Status& why, bool /*flush*/) override { end = why; }

  bool opened() const {
    for (const agent_pb::AgentEvent& event : sent) {
      if (event.has_opened()) return true;
    }
    return false;
  }

  std::vector<agent_pb::AgentEvent> sent;
  int reads = 0;
  std::optional<absl::Status> end;
};

class NoConnector final : public PeerConnector {
 public:
  std::shared_ptr<PeerStream> Connect(const std::string& /*address*/) override { return nullptr; }
};

/// An engine host, pools with a worker of their own, and a core whose outside is fake.
class EngineHostTest : public testing::Test {
 protected:
  EngineHostTest() {
    std::filesystem::create_directory(folder_);
    host_.Bind(core_, [] {});
  }
  ~EngineHostTest() override {
    host_.Shutdown();
    RunAll();
    worker_.reset();
    std::filesystem::remove_all(folder_);
  }

  /// The worker has a thread: waits until it has done what was posted.
  void RunAll() {
    for (int i = 0; i < 3; ++i) {
      loop_.Run();
      absl::Notification done;
      worker_->Post([&] { done.Notify(); });
      done.WaitForNotification();
    }
    loop_.Run();
  }
  void Pass(absl::Duration time) {
    loop_.Advance(time);
    RunAll();
  }

  absl::Status CreatePool(ByteCount size = kPoolSize) {
    absl::Status result = absl::UnknownError("no answer");
    host_.CreatePool("pool", size, transport::HugePages::kNo,
                     [&](const absl::StatusOr<PoolView>& view) { result = view.status(); });
    RunAll();
    return result;
  }
  absl::StatusOr<PoolView> ImportPool(const transport::FileHandle& memory, bool read_only = false) {
    absl::StatusOr<PoolView> result = absl::UnknownError("no answer");
    host_.ImportPool({.name = "pool",
                      .size = kPoolSize,
                      .memory_file = transport::PathOfDescriptor(getpid(), memory.fd()),
                      .read_only = read_only},
                     [&](absl::StatusOr<PoolView> view) { result = std::move(view); });
    RunAll();
    return result;
  }
  /// Shared memory as an engine makes it.
  static transport::FileHandle MakeMemory() {
    transport::FileHandle memory(memfd_create("engine", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(memory.fd(), kPoolSize.value()), 0);
    return memory;
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  absl::Status Register(Role role) {
    absl::Status result = absl::UnknownError("no answer");
    host_.RegisterEngine(TestEngine(role),
                         [&](const absl::StatusOr<AgentRef>& agent) { result = agent.status(); });
    RunAll();
    if (bootstrap_.claim) {
      bootstrap_.claim(Claim{.lease = LeaseId(5), .epoch = Epoch(9), .ttl = absl::Seconds(3)});
    }
    RunAll();
    return result;
  }
  std::shared_ptr<FakeEngineStream> Open(Role role) {
    auto stream = std::make_shared<FakeEngineStream>();
    EngineFrame frame;
    frame.commands.emplace_back(
        OpenSession{.engine_id = TestEngine(role).engine_id.value(), .client = "test"});
    host_.OnFrame(stream, std::move(frame));
    RunAll();
    return stream;
  }
  std::shared_ptr<FakeEngineStream> Begin(Role role) {
    EXPECT_THAT(CreatePool(), IsOk());
    EXPECT_THAT(Register(role), IsOk());
    return Open(role);
  }
  /// A room whose copy runs.
  void StartCopy() {
    core_.OnPeerUp(kPeer, TestPeer(Role::kDecode), loop_.Now());
    core_.OnEngineCommand(OpenReceive{.room = {RoomId(1), Attempt(1)},
                                      .prefill_engine = EngineId("prefill"),
                                      .runs = {{10, 2}},
                                      .timeout = absl::Seconds(30)},
                          loop_.Now());
    ASSERT_EQ(ports_.finder.open.size(), 1u);
    core_.OnPeerFound(ports_.finder.open.begin()->first, kPeer, loop_.Now());
    core_.OnPeerFrame(kPeer, Sequence(1),
                      Offer{.room = {RoomId(1), Attempt(1)},
                            .runs = {{0, 2}},
                            .last = true,
                            .seal = {.region = RegionId(1), .value = 5}},
                      loop_.Now());
    ASSERT_EQ(ports_.mover.running.size(), 1u);
    RunAll();
  }
  uint64_t SealGeneration() {
    const auto seal = pools_.Make();
    EXPECT_THAT(seal, IsOk());
    return seal.ok() ? seal->value >> transport::kSealGenerationShift : 0;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("engine_host_test.", getpid());
  FakeLoop loop_;
  std::unique_ptr<Worker> worker_ = std::make_unique<Worker>();
  MetricRegistry registry_;
  AgentProbe probe_{registry_};
  OwnSide own_{.agent = {.id = AgentId("self"), .epoch = Epoch(0)},
               .policy = {.allowed = {transport::TransportKind::kLocal}}};
  FakeBootstrap bootstrap_;
  NoConnector connector_;
  PoolStore pools_{loop_, *worker_, {}, {.agent = AgentId("self"), .shm_dir = folder_}};
  PeerDirectory directory_{loop_, *worker_, probe_};
  PeerDialler dialler_{loop_, *worker_, connector_, directory_, own_, {}, PeerTimings(), {}};
  EngineWatch watch_{loop_, bootstrap_, {}};
  RankFinder finder_{loop_, own_, watch_, bootstrap_, directory_, dialler_, absl::Seconds(10)};
  RoomPlacer placer_{loop_, bootstrap_, {}};
  EngineHost host_{{.agent = AgentId("self"), .pool_grace = absl::Seconds(30)},
                   {.loop = loop_,
                    .own = own_,
                    .bootstrap = bootstrap_,
                    .pools = pools_,
                    .directory = directory_,
                    .dialler = dialler_,
                    .finder = finder_,
                    .watch = watch_,
                    .placer = placer_,
                    .probe = probe_}};
  FakePorts ports_;
  AgentCore core_{{},
                  {.engine = host_,
                   .peers = ports_.peers,
                   .finder = ports_.finder,
                   .seals = ports_.seals,
                   .mover = ports_.mover,
                   .probe = probe_}};
};

}  // namespace pageferry::agent
