// Two agents' acceptor, dialler and directory over fake streams: how sessions come about.

#include "services/transfer-agent/peer_dialler.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/metrics.h"
#include "services/transfer-agent/peer_acceptor.h"
#include "tests/fakes/fake_ports.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/transfer-agent/fake_loop.h"

namespace pageferry::agent {
namespace {

using transport::TransportKind;

/// A way to peers that cannot be opened as often as the test says.
class PickyTransport final : public transport::Transport {
 public:
  class Peer final : public transport::TransportPeer {
    void Write(transport::Batch, transport::WriteDone done) override { done(absl::OkStatus()); }
    void Flush(transport::WriteDone done) override { done(absl::OkStatus()); }
  };

  TransportKind kind() const override { return TransportKind::kLocal; }
  transport::Driver driver() const override { return transport::Driver::kTarget; }
  std::string address() const override { return ""; }
  absl::StatusOr<transport::RemoteRegion> MapRegion(const transport::OwnRegion&) override {
    return transport::RemoteRegion();
  }
  absl::Status UnmapRegion(RegionId) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<transport::TransportPeer>> Connect(
      const transport::PeerSpec&) override {
    if (failures-- > 0) {
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport, "no mapping");
    }
    return std::make_unique<Peer>();
  }

  int failures = 0;
};

class FakeConnector final : public PeerConnector {
 public:
  std::shared_ptr<PeerStream> Connect(const std::string& address) override {
    addresses.push_back(address);
    streams.push_back(std::make_shared<FakeStream>());
    return streams.back();
  }

  std::vector<std::string> addresses;
  std::vector<std::shared_ptr<FakeStream>> streams;
};

EngineInfo EngineOf(const std::string& id, Role role) {
  EngineInfo engine{
      .name_space = NamespaceName("default"), .engine_id = EngineId(id), .role = role};
  engine.profile = {
      .page_tokens = 16,
      .data_type = DataType::kFloat16,
      .layout = KvLayout::kNhd,
      .total_kv_heads = 1,
      .rank_kv_heads = 1,
      .head_dim = 8,
      .entries = {
          {.pages = {.region = RegionId(1), .item_size = ByteCount(256), .item_count = 4}}}};
  return engine;
}

OwnSide SideOf(const std::string& id, Role role) {
  OwnSide side{.agent = {AgentId(id), Epoch(1)},
               .registered = true,
               .engine = EngineOf(id, role),
               .host_id = "host",
               .policy = {.allowed = {TransportKind::kLocal}}};
  side.regions = {{.id = RegionId(1), .size = ByteCount(4096), .local = transport::LocalMapping{}}};
  return side;
}

struct Ports {
  explicit Ports(PeerDirectory& directory, AgentProbe& probe)
      : core({}, {.engine = engine,
                  .peers = directory,
                  .finder = finder,
                  .seals = seals,
                  .mover = directory,
                  .probe = probe}) {}

  FakeEngine engine;
  FakeFinder finder;
  FakeSeals seals;
  AgentCore core;
};

class PeerDiallerTest : public testing::Test {
 protected:
  struct Answer {
    AgentRef agent;
    absl::StatusOr<PeerId> session;
    bool final = false;
  };

  PeerDiallerTest() {
    decode_.core.SetEngine(decode_side_.engine, decode_side_.agent);
    directory_.Bind(decode_.core);
    dialler_.Bind([this](const AgentRef& agent, const absl::StatusOr<PeerId>& session, bool final) {
      answers_.push_back({agent, session, final});
    });
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
  FakeStream& stream() { return *connector_.streams.back(); }
  /// The prefill agent's answer to the last Hello.
  void AnswerHelloNow() {
    const std::vector<Hello> hellos = stream().All<Hello>();
    ASSERT_EQ(hellos.size(), 1);
    stream().handler->OnInput(
        {.epoch = Epoch(1), .content = AnswerHello(prefill_side_, hellos[0])});
    RunAll();
  }

  const AgentRef prefill_{AgentId("prefill"), Epoch(1)};
  FakeLoop loop_;
  MetricRegistry registry_;
  AgentProbe probe_{registry_};
  PickyTransport transport_;
  FakeConnector connector_;
  OwnSide decode_side_ = SideOf("decode", Role::kDecode);
  OwnSide prefill_side_ = SideOf("prefill", Role::kPrefill);
  std::unique_ptr<Worker> worker_ = std::make_unique<Worker>();
  PeerDirectory directory_{loop_, *worker_, probe_};
  Ports decode_{directory_, probe_};
  PeerDialler dialler_{
      loop_,         *worker_,
      connector_,    directory_,
      decode_side_,  {{TransportKind::kLocal, &transport_}},
      PeerTimings(), {.initial = absl::Milliseconds(100), .max = absl::Seconds(1)}};
  std::vector<Answer> answers_;
};

TEST_F(PeerDiallerTest, MakesOneSessionForAllThatWantIt) {
  dialler_.Want(prefill_, "p:1");
  dialler_.Want(prefill_, "p:1");
  EXPECT_THAT(connector_.addresses, testing::ElementsAre("p:1"));
  AnswerHelloNow();
  ASSERT_EQ(answers_.size(), 1);
  ASSERT_THAT(answers_[0].session, IsOk());
  EXPECT_TRUE(answers_[0].final);
  const auto found = directory_.FindDialled(prefill_);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(**found, *answers_[0].session);
  EXPECT_FALSE(directory_.FindDialled({AgentId("prefill"), Epoch(2)}).has_value());
  ASSERT_EQ(directory_.Views().size(), 1);
  EXPECT_EQ(directory_.Views()[0].transport, "local");
  EXPECT_EQ(directory_.Views()[0].transport_reason, "one host");
}

TEST_F(PeerDiallerTest, I5_ASessionGoesOnAsTheAgentThatSaidHello) {
  dialler_.Want(prefill_, "p:1");
  const Epoch said = decode_side_.agent.epoch;
  decode_side_.agent.epoch = Epoch(2);  // claimed anew while Hello is under way
  AnswerHelloNow();
  ASSERT_EQ(answers_.size(), 1);
  ASSERT_THAT(answers_[0].session, IsOk());
  directory_.Send(*answers_[0].session, Abort{.room = {RoomId(1), Attempt(1)}});
  EXPECT_EQ(stream().sent.back().epoch, said);
}

TEST_F(PeerDiallerTest, TriesAgainWithBackoffAsLongAsSomebodyWantsIt) {
  dialler_.Want(prefill_, "p:1");
  stream().handler->OnStreamEnded(absl::UnavailableError("refused"));
  loop_.Run();
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_FALSE(answers_[0].final);
  EXPECT_THAT(answers_[0].session, StatusIs(absl::StatusCode::kUnavailable, Reason::kPeerLost));
  loop_.Advance(absl::Milliseconds(99));
  EXPECT_EQ(connector_.streams.size(), 1);
  loop_.Advance(absl::Milliseconds(101));
  EXPECT_EQ(connector_.streams.size(), 2);
  stream().handler->OnStreamEnded(absl::UnavailableError("refused"));
  loop_.Run();
  dialler_.Drop(prefill_);
  loop_.Advance(absl::Minutes(1));
  EXPECT_EQ(connector_.streams.size(), 2);
}

TEST_F(PeerDiallerTest, AWayThatFailsIsNamedInANewHello) {
  transport_.failures = 1;
  dialler_.Want(prefill_, "p:1");
  AnswerHelloNow();
  ASSERT_EQ(connector_.streams.size(), 2);
  EXPECT_TRUE(connector_.streams[0]->ended);
  ASSERT_EQ(stream().All<Hello>().size(), 1);
  EXPECT_EQ(stream().All<Hello>()[0].transports[0].unusable, "no mapping");
  AnswerHelloNow();
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_TRUE(answers_[0].final);
  EXPECT_THAT(answers_[0].session,
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport));
  EXPECT_THAT(MetadataOf(answers_[0].session.status()).at("local"), "failed: no mapping");

  // The refusal is kept for a moment, then all is tried anew.
  dialler_.Want(prefill_, "p:1");
  loop_.Run();
  EXPECT_EQ(answers_.size(), 2);
  EXPECT_EQ(connector_.streams.size(), 2);
  loop_.Advance(absl::Seconds(1));
  dialler_.Want(prefill_, "p:1");
  AnswerHelloNow();
  ASSERT_EQ(answers_.size(), 3);
  EXPECT_THAT(answers_[2].session, IsOk());
}

TEST_F(PeerDiallerTest, AStaleEpochIsNotFinal) {
  prefill_side_.agent.epoch = Epoch(2);
  dialler_.Want(prefill_, "p:1");
  AnswerHelloNow();
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_FALSE(answers_[0].final);
  EXPECT_THAT(answers_[0].session, HasReason(Reason::kStaleEpoch));
}

TEST_F(PeerDiallerTest, AnAnswerThatDoesNotFitIsRefused) {
  dialler_.Want(prefill_, "p:1");
  HelloReply reply = AnswerHello(prefill_side_, stream().All<Hello>()[0]);
  ASSERT_THAT(reply.error, IsOk());
  reply.engine.profile.entries[0].pages.item_count = 1000;
  stream().handler->OnInput({.epoch = Epoch(1), .content = reply});
  RunAll();
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_THAT(answers_[0].session, HasReason(Reason::kInvalidField));
  EXPECT_TRUE(answers_[0].final);
}

TEST_F(PeerDiallerTest, AGoingPeerTakesNoNewRooms) {
  dialler_.Want(prefill_, "p:1");
  AnswerHelloNow();
  stream().handler->OnInput(
      {.sequence = Sequence(1),
       .epoch = Epoch(1),
       .content = PeerFrame(GoAway{
           .error = MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "draining")})});
  const auto found = directory_.FindDialled(prefill_);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(*found, HasReason(Reason::kDraining));
}

TEST_F(PeerDiallerTest, ANewSessionOfTheSameAgentTakesTheOldOnesPlace) {
  PeerDirectory directory(loop_, *worker_, probe_);
  Ports prefill(directory, probe_);
  prefill.core.SetEngine(prefill_side_.engine, prefill_side_.agent);
  directory.Bind(prefill.core);
  PeerAcceptor acceptor(loop_, *worker_, directory, prefill_side_,
                        {{TransportKind::kLocal, &transport_}}, PeerTimings());
  const auto hello = [&](int64_t epoch) {
    decode_side_.agent.epoch = Epoch(epoch);
    auto stream = std::make_shared<FakeStream>();
    acceptor.Accept(stream);
    stream->handler->OnInput(
        {.epoch = Epoch(epoch),
         .content = MakeHello(decode_side_, SessionId("s"), prefill_, UnusableWays())});
    loop_.Run();
    return stream;
  };
  const auto first = hello(1);
  ASSERT_EQ(first->All<HelloReply>().size(), 1);
  EXPECT_THAT(first->All<HelloReply>()[0].error, IsOk());
  const auto second = hello(2);
  EXPECT_THAT(second->All<HelloReply>()[0].error, IsOk());
  EXPECT_TRUE(first->ended);
  ASSERT_EQ(directory.Views().size(), 1);
  EXPECT_EQ(directory.Views()[0].agent.epoch, Epoch(2));

  prefill_side_.draining = true;
  const auto third = hello(3);
  EXPECT_THAT(third->All<HelloReply>()[0].error, HasReason(Reason::kDraining));
  EXPECT_TRUE(third->ended);
  EXPECT_EQ(directory.Views().size(), 1);
  directory.CloseAll(absl::CancelledError("the test is over"));
  loop_.Run();
}

/// A way whose other end tells a secret, if it lets anybody in.
class PassiveTransport final : public transport::Transport {
 public:
  class Passive final : public transport::PassivePeer {
   public:
    explicit Passive(int& live) : live_(live) { ++live_; }
    ~Passive() override { --live_; }
    std::string address() const override { return "secret"; }

   private:
    int& live_;
  };

  TransportKind kind() const override { return TransportKind::kTcp; }
  transport::Driver driver() const override { return transport::Driver::kTarget; }
  std::string address() const override { return "worker"; }
  absl::StatusOr<transport::RemoteRegion> MapRegion(const transport::OwnRegion&) override {
    return transport::RemoteRegion();
  }
  absl::Status UnmapRegion(RegionId) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<transport::TransportPeer>> Connect(
      const transport::PeerSpec&) override {
    return absl::UnimplementedError("not dialled here");
  }
  absl::StatusOr<std::unique_ptr<transport::PassivePeer>> Accept(
      const transport::PeerSpec& spec) override {
    addresses.push_back(spec.address);
    if (!refusal.ok()) return refusal;
    return std::make_unique<Passive>(live);
  }

  absl::Status refusal;
  std::vector<std::string> addresses;
  int live = 0;
};

TEST_F(PeerDiallerTest, AnEndOfTheWayIsOpenedForEachAcceptedSession) {
  PeerDirectory directory(loop_, *worker_, probe_);
  Ports prefill(directory, probe_);
  prefill.core.SetEngine(prefill_side_.engine, prefill_side_.agent);
  directory.Bind(prefill.core);
  PassiveTransport tcp;
  prefill_side_.policy.allowed = {TransportKind::kTcp, TransportKind::kLocal};
  decode_side_.policy.allowed = prefill_side_.policy.allowed;
  decode_side_.addresses[TransportKind::kTcp] = "of decode";
  PeerAcceptor acceptor(loop_, *worker_, directory, prefill_side_,
                        {{TransportKind::kLocal, &transport_}, {TransportKind::kTcp, &tcp}},
                        PeerTimings());
  const auto hello = [&] {
    auto stream = std::make_shared<FakeStream>();
    acceptor.Accept(stream);
    stream->handler->OnInput(
        {.epoch = Epoch(1),
         .content = MakeHello(decode_side_, SessionId("s"), prefill_, UnusableWays())});
    loop_.Run();
    return stream->All<HelloReply>().at(0);
  };
  const HelloReply good = hello();
  EXPECT_THAT(good.error, IsOk());
  EXPECT_EQ(good.transport.kind, TransportKind::kTcp);
  EXPECT_EQ(good.transport.address, "secret");
  EXPECT_THAT(tcp.addresses, testing::ElementsAre("of decode"));
  EXPECT_EQ(tcp.live, 1);

  // One that cannot be opened is passed over, and the reason says so.
  tcp.refusal = MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport, "too old");
  const HelloReply other = hello();
  EXPECT_EQ(other.transport.kind, TransportKind::kLocal);
  EXPECT_THAT(other.transport.reason, testing::HasSubstr("too old"));
  directory.CloseAll(absl::CancelledError("the test is over"));
  loop_.Run();
  worker_.reset();  // waits for what was handed to it
  EXPECT_EQ(tcp.live, 0);
}

}  // namespace
}  // namespace pageferry::agent
