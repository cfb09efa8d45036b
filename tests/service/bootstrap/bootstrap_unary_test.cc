#include <map>
#include <random>
#include <set>

#include "tests/service/bootstrap/bootstrap_fixture.h"

namespace pageferry::bootstrap {
namespace {

using absl::StatusCode;
using Stub = v1::Bootstrap::StubInterface;

std::set<std::string> MissingNames(const absl::Status& status) {
  std::set<std::string> names;
  std::string text = MetadataOf(status)["missing"];
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(", ", at), text.size());
    names.insert(text.substr(at, end - at));
    at = end + 2;
  }
  return names;
}

TEST_F(BootstrapTest, AnEngineIsReadyWhenEachOfItsCellsIsClaimed) {
  std::vector<int> order(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) order[rank] = rank;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  EXPECT_THAT(Resolve({0}), StatusIs(StatusCode::kNotFound, Reason::kEngineNotFound));

  std::set<std::string> missing;
  for (const int rank : order) missing.insert(Name(rank));
  std::map<int, int64_t> epochs;
  for (const int rank : order) {
    if (missing.size() < kRanks) {
      const absl::Status status = Resolve({0, 15}).status();
      EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable, Reason::kEngineNotReady));
      EXPECT_EQ(MissingNames(status), missing);
    }
    missing.erase(Name(rank));
    ASSERT_OK_AND_ASSIGN(const auto grant, Register(Claim(rank)));
    EXPECT_EQ(grant.missing_count(), static_cast<int>(missing.size()));
    EXPECT_EQ(grant.ttl().seconds(), 3);
    epochs[rank] = grant.epoch();
    if (missing.size() != 1) continue;
    for (int again = 0; again < 16; ++again) {  // 31 claims in all, 15 cells
      ASSERT_OK_AND_ASSIGN(const auto repeat, Register(Claim(rank)));
      EXPECT_EQ(repeat.epoch(), grant.epoch());
      EXPECT_EQ(repeat.lease_id(), grant.lease_id());
      EXPECT_EQ(repeat.missing_count(), 1);
    }
    EXPECT_FALSE(GetEngine()->ready());
  }
  ASSERT_OK_AND_ASSIGN(const auto all, Resolve(order));
  ASSERT_EQ(all.ranks_size(), kRanks);
  for (int i = 0; i < kRanks; ++i) {
    EXPECT_EQ(all.ranks(i).agent().agent_id(), absl::StrCat("agent-", order[i]));
    EXPECT_EQ(all.ranks(i).agent().epoch(), epochs[order[i]]);
    EXPECT_EQ(all.ranks(i).endpoint().port(), 9000 + order[i]);
  }
  ASSERT_OK_AND_ASSIGN(const auto engine, GetEngine());
  EXPECT_TRUE(engine.ready());
  EXPECT_EQ(engine.live_count(), kRanks);
  EXPECT_EQ(engine.dp_policy(), v1::DP_POLICY_ROOM_MODULO);
  for (int i = 0; i < kRanks; ++i) EXPECT_EQ(engine.ranks(i).endpoint().port(), 9000 + i);
}

TEST_F(BootstrapTest, ACoordinateOutsideTheShapeIsAnInvalidArgument) {
  ASSERT_THAT(Register(Claim(0)), IsOk());
  EXPECT_THAT(Resolve({16}), StatusIs(StatusCode::kInvalidArgument, Reason::kInvalidField));
}

TEST_F(BootstrapTest, LeasesLiveByKeepAliveAndEndByDeregister) {
  RegisterAll();
  ASSERT_OK_AND_ASSIGN(const auto grant, Register(Claim(3)));
  KeepAliveClient keep_alive(*stub_);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(keep_alive.Renew({grant.lease_id(), 12345, 0}), "3 LEASE_NOT_FOUND LEASE_NOT_FOUND");
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(GetEngine()->live_count(), 1);
  EXPECT_EQ(GetEngine()->missing_count(), 15);
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(keep_alive.Renew({grant.lease_id()}), "LEASE_NOT_FOUND");
  EXPECT_EQ(GetEngine()->live_count(), 0);

  ASSERT_OK_AND_ASSIGN(const auto back, Register(Claim(3)));
  EXPECT_EQ(back.epoch(), grant.epoch());
  v1::DeregisterRequest deregister;
  deregister.set_lease_id(back.lease_id());
  EXPECT_TRUE(Call(&Stub::Deregister, deregister)->existed());
  EXPECT_FALSE(Call(&Stub::Deregister, deregister)->existed());
  EXPECT_EQ(keep_alive.Renew({back.lease_id()}), "LEASE_NOT_FOUND");
  EXPECT_THAT(keep_alive.End(), IsOk());
  EXPECT_EQ(Metric("pageferry_bootstrap_lease_expiries_total"), 16);
  EXPECT_EQ(Metric("pageferry_bootstrap_deregistrations_total"), 1);
}

TEST_F(BootstrapTest, TheYoungerIncarnationTakesTheCellAndTheOlderLearnsIt) {
  ASSERT_OK_AND_ASSIGN(const auto old, Register(Claim(0)));
  auto younger = Claim(0);
  younger.mutable_incarnation()->set_nonce(8);
  ASSERT_OK_AND_ASSIGN(const auto young, Register(younger));
  EXPECT_GT(young.epoch(), old.epoch());
  KeepAliveClient keep_alive(*stub_);
  EXPECT_EQ(keep_alive.Renew({old.lease_id(), young.lease_id()}), "SUPERSEDED 3");
  EXPECT_THAT(Register(Claim(0)), StatusIs(StatusCode::kFailedPrecondition, Reason::kSuperseded));
  EXPECT_EQ(GetEngine()->ranks(0).agent().epoch(), young.epoch());
  EXPECT_EQ(Metric("pageferry_bootstrap_supersedes_total"), 1);
}

TEST_F(BootstrapTest, AMismatchNamesTheFieldAndBothValuesUntilTheLastLeaseHasEnded) {
  ASSERT_OK_AND_ASSIGN(const auto first, Register(Claim(0)));
  auto other_shape = Claim(1);
  other_shape.mutable_shape()->set_tp(8);
  const absl::Status shape = Register(other_shape).status();
  EXPECT_THAT(shape, StatusIs(StatusCode::kFailedPrecondition, Reason::kShapeMismatch));
  EXPECT_EQ(MetadataOf(shape), (ErrorMetadata{{"field", "shape.tp"}, {"have", "4"}, {"got", "8"}}));
  auto other_profile = Claim(1);
  other_profile.mutable_profile()->set_page_tokens(32);
  const absl::Status profile = Register(other_profile).status();
  EXPECT_THAT(profile, StatusIs(StatusCode::kFailedPrecondition, Reason::kProfileMismatch));
  EXPECT_EQ(MetadataOf(profile),
            (ErrorMetadata{{"field", "profile.page_tokens"}, {"have", "16"}, {"got", "32"}}));
  clock_.Advance(absl::Seconds(3));
  ASSERT_OK_AND_ASSIGN(const auto second, Register(other_shape));
  EXPECT_GT(second.epoch(), first.epoch());
  EXPECT_EQ(GetEngine()->shape().tp(), 8);
}

TEST_F(BootstrapTest, AnEmptyServiceSaysThatItIsWarmingUp) {
  StartServer();
  EXPECT_THAT(Resolve({0}), StatusIs(StatusCode::kUnavailable, Reason::kWarmingUp));
  EXPECT_THAT(GetEngine(), StatusIs(StatusCode::kUnavailable, Reason::kWarmingUp));
  EXPECT_TRUE(Call(&Stub::ListEngines, v1::ListEnginesRequest())->warming_up());
  ASSERT_THAT(Register(Claim(0)), IsOk());
  EXPECT_THAT(Resolve({0}), StatusIs(StatusCode::kUnavailable, Reason::kEngineNotReady));
  clock_.Advance(absl::Seconds(6) - absl::Milliseconds(1));
  EXPECT_THAT(GetEngine("other"), HasReason(Reason::kWarmingUp));
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(GetEngine("other"), StatusIs(StatusCode::kNotFound, Reason::kEngineNotFound));
  EXPECT_FALSE(Call(&Stub::ListEngines, v1::ListEnginesRequest())->warming_up());
}

TEST_F(BootstrapTest, ARestartChangesNoLiveAgentsEpochAndGivesOutHigherOnes) {
  std::map<int, int64_t> epochs;
  for (int rank = 0; rank < kRanks; ++rank) epochs[rank] = Register(Claim(rank))->epoch();
  const int64_t old_lease = Register(Claim(0))->lease_id();
  StartServer();
  KeepAliveClient keep_alive(*stub_);
  ASSERT_OK_AND_ASSIGN(const auto newcomer, Register(Claim(1)));
  EXPECT_EQ(keep_alive.Renew({old_lease}), "LEASE_NOT_FOUND");
  EXPECT_GT(newcomer.epoch(), epochs[1]);
  for (int rank = 2; rank < kRanks; ++rank) {
    auto claim = Claim(rank);
    claim.set_last_epoch(epochs[rank]);
    EXPECT_EQ(Register(claim)->epoch(), epochs[rank]);
  }
  // Two lives say that they had the epoch: one of them gets another.
  auto claim = Claim(0);
  claim.set_last_epoch(epochs[0]);
  EXPECT_EQ(Register(claim)->epoch(), epochs[0]);
  claim.mutable_incarnation()->set_nonce(8);
  EXPECT_GT(Register(claim)->epoch(), epochs[0]);
}

TEST_F(BootstrapTest, AResolveThatWaitsIsWokenByTheLastRank) {
  for (int rank = 1; rank < kRanks; ++rank) ASSERT_THAT(Register(Claim(rank)), IsOk());
  Async<absl::StatusOr<v1::ResolveRanksResponse>> call([&] { return Resolve({0, 5}, 60); });
  ASSERT_TRUE(WaitingCalls(1));
  ASSERT_THAT(Register(Claim(0)), IsOk());
  ASSERT_THAT(call.Get(), IsOk());
  EXPECT_EQ(call.Get()->ranks(1).endpoint().port(), 9005);
}

TEST_F(BootstrapTest, AResolveWaitsForAnEngineThatIsNotThereYet) {
  Async<absl::StatusOr<v1::ResolveRanksResponse>> call([&] { return Resolve({0}, 60); });
  ASSERT_TRUE(WaitingCalls(1));
  RegisterAll();
  EXPECT_THAT(call.Get(), IsOk());
}

TEST_F(BootstrapTest, AWaitEndsByItsTimeWithTheReason) {
  ASSERT_THAT(Register(Claim(0)), IsOk());
  Async<absl::StatusOr<v1::ResolveRanksResponse>> resolve([&] { return Resolve({0}, 2); });
  Async<absl::StatusOr<std::string>> lookup([&] { return Lookup({1, 2}, 2); });
  ASSERT_THAT(Place({{2, 1}}), IsOk());
  ASSERT_TRUE(WaitingCalls(2));
  clock_.Advance(absl::Seconds(2));
  EXPECT_THAT(resolve.Get(), StatusIs(StatusCode::kUnavailable, Reason::kEngineNotReady));
  EXPECT_THAT(lookup.Get(), IsOkAndHolds("2@1 "));
  EXPECT_TRUE(WaitingCalls(0));
}

TEST_F(BootstrapTest, ACancelledCallWaitsNoLonger) {
  grpc::ClientContext context;
  Async<absl::StatusOr<v1::ResolveRanksResponse>> resolve(
      [&] { return Resolve({0}, 60, &context); });
  grpc::ClientContext other;
  Async<absl::StatusOr<std::string>> lookup([&] { return Lookup({1}, 60, &other); });
  ASSERT_TRUE(WaitingCalls(2));
  context.TryCancel();
  ASSERT_TRUE(WaitingCalls(1));
  other.TryCancel();
  ASSERT_TRUE(WaitingCalls(0));
  EXPECT_THAT(resolve.Get(), StatusIs(StatusCode::kCancelled));
  EXPECT_TRUE(Eventually([&] {
    return Metric("pageferry_bootstrap_rpcs_total{code=\"cancelled\",method=\"resolve_ranks\"}") ==
           1;
  }));
}

TEST_F(BootstrapTest, RoomsArePlacedMovedFoundAndForgotten) {
  EXPECT_EQ(Place({{1, 0}, {2, 1}})->moved_count(), 0);
  EXPECT_EQ(Place({{2, 0}, {3, 1}})->moved_count(), 1);
  EXPECT_THAT(Lookup({3, 9, 2, 1}), IsOkAndHolds("3@1 2@0 1@0 "));
  Async<absl::StatusOr<std::string>> lookup([&] { return Lookup({1, 4, 5}, 60); });
  ASSERT_TRUE(WaitingCalls(1));
  ASSERT_THAT(Place({{5, 1}}), IsOk());
  ASSERT_TRUE(WaitingCalls(1));
  ASSERT_THAT(Place({{4, 1}}), IsOk());
  EXPECT_THAT(lookup.Get(), IsOkAndHolds("1@0 4@1 5@1 "));
  EXPECT_EQ(Metric("pageferry_bootstrap_rooms"), 5);
  clock_.Advance(absl::Minutes(5));
  EXPECT_THAT(Lookup({1, 2, 3}), IsOkAndHolds(""));
  EXPECT_EQ(Metric("pageferry_bootstrap_rooms"), 0);
}

TEST_F(BootstrapTest, EnginesAreListedPageByPage) {
  for (const char* name : {"c", "a", "b"}) ASSERT_THAT(Register(Claim(0, name)), IsOk());
  v1::ListEnginesRequest request;
  request.set_page_size(2);
  ASSERT_OK_AND_ASSIGN(const auto first, Call(&Stub::ListEngines, request));
  ASSERT_EQ(first.engines_size(), 2);
  EXPECT_EQ(first.engines(1).key().engine_id(), "b");
  EXPECT_EQ(first.engines(1).key().namespace_(), "default");
  EXPECT_EQ(first.engines(1).missing_size(), 15);
  request.set_page_token(first.next_page_token());
  ASSERT_OK_AND_ASSIGN(const auto second, Call(&Stub::ListEngines, request));
  ASSERT_EQ(second.engines_size(), 1);
  EXPECT_EQ(second.next_page_token(), "");
  request.set_page_token("elsewhere/a");
  EXPECT_THAT(Call(&Stub::ListEngines, request), HasReason(Reason::kInvalidField));
}

TEST_F(BootstrapTest, AnswersThatDoNotFitAMessageAreCutIntoPagesOrRefused) {
  ServerOptions options;
  options.max_message = ByteCount(64 << 10);
  StartWarmServer(options);
  const auto register_ranks = [&](int from, int to, const std::string& engine) {
    for (int rank = from; rank < to; ++rank) {
      auto request = Claim(rank, engine);
      for (int label = 0; label < 32; ++label) {  // 4 KiB
        (*request.mutable_labels())[std::string(61, 'a') + absl::StrCat(10 + label)] =
            std::string(63, 'v');
      }
      ASSERT_THAT(Register(request), IsOk());
    }
  };
  for (const char* engine : {"a", "b", "prefill-0"}) register_ranks(0, 7, engine);
  v1::ListEnginesRequest request;
  request.set_include_ranks(true);
  std::string names;
  do {
    ASSERT_OK_AND_ASSIGN(const auto page, Call(&Stub::ListEngines, request));
    for (const auto& engine : page.engines()) names += engine.key().engine_id() + " ";
    names += "| ";
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(names, "a b | prefill-0 | ");
  register_ranks(7, kRanks, "prefill-0");
  EXPECT_THAT(GetEngine("a"), IsOk());
  EXPECT_THAT(GetEngine(), StatusIs(StatusCode::kResourceExhausted, Reason::kTooLarge));
  EXPECT_THAT(Resolve({0, 1, 2}), IsOk());
  EXPECT_THAT(Resolve(std::vector<int>(100)), HasReason(Reason::kTooLarge));
}

TEST_F(BootstrapTest, TheMetricsOfAStoppedServerAreItsLast) {
  RegisterAll();
  server_->Stop();
  EXPECT_EQ(Metric("pageferry_bootstrap_registrations_total"), kRanks);
  EXPECT_EQ(Metric("pageferry_bootstrap_cells"), kRanks);
}

TEST_F(BootstrapTest, BatchesAreBounded) {
  v1::ResolveRanksRequest resolve;
  resolve.mutable_engine()->set_engine_id("prefill-0");
  EXPECT_THAT(Call(&Stub::ResolveRanks, resolve), HasReason(Reason::kInvalidField));
  for (int i = 0; i <= 10'000; ++i) *resolve.add_coordinates() = Coordinate(0);
  EXPECT_THAT(Call(&Stub::ResolveRanks, resolve), HasReason(Reason::kTooLarge));
  EXPECT_THAT(Lookup(std::vector<int64_t>(10'001)), HasReason(Reason::kTooLarge));
  EXPECT_THAT(Place(std::vector<std::pair<int64_t, int>>(10'001)), HasReason(Reason::kTooLarge));
  EXPECT_THAT(Place(std::vector<std::pair<int64_t, int>>(10'000)), IsOk());
}

TEST_F(BootstrapTest, ATakenPortIsAnErrorAndADrainAnswersWhoWaits) {
  ServerOptions options;
  options.listen = server_->address();
  EXPECT_THAT(BootstrapServer::Start(options), StatusIs(StatusCode::kUnavailable, Reason::kInUse));
  Async<absl::StatusOr<v1::ResolveRanksResponse>> call([&] { return Resolve({0}, 60); });
  ASSERT_TRUE(WaitingCalls(1));
  server_->Stop();
  EXPECT_THAT(call.Get(), StatusIs(StatusCode::kUnavailable, Reason::kDraining));
}

}  // namespace
}  // namespace pageferry::bootstrap
