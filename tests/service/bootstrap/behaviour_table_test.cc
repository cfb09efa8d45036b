// What the bootstrap service of SGLang does, and what ours does in its place: a test for each row.
//
// clang-format off
//   theirs (HTTP)                                 ours (gRPC)
//   PUT /route                                    Register
//   PUT, another size than the first row: 200,    FAILED_PRECONDITION, the field and both values
//     the value is silently ignored
//   PUT, another policy than the first row: 400   FAILED_PRECONDITION as well
//   PUT, a key is missing: 500                    INVALID_ARGUMENT naming the field
//   PUT, a key that is not known: ignored, but    ignored by both ends, today and later
//     the same in an answer breaks older decoders
//   PUT, the same row again: counts as one more   the set of live cells counts: never ready early
//   PUT of a second rank for a taken cell: the    the younger incarnation wins, the older is told
//     last one wins, nobody is told
//   rows are never removed                        leases end, and the rank is missing by name
//   the first writer fixes sizes for ever         until the engine's last lease has ended
//   a rank gives up after 5 tries and runs on     tries for ever (agent_bootstrap_test:
//                                                   AnUnreachableServiceIsTriedAgain...)
//   GET /route, all -1, incomplete: 503           GetEngine: not ready, missing ranks by name
//   GET /route, all -1: sizes                     GetEngine: shape, profile, policy
//   GET /route, incomplete: 503                   UNAVAILABLE, ENGINE_NOT_READY with "missing"
//   GET /route, no such rank: 404                 INVALID_ARGUMENT, outside of the shape
//   GET /route, a parameter is missing: 400       a coordinate that is left out is the first rank
//   other verbs: 405                              UNIMPLEMENTED for a method that is not there
//   POST /register_dp_rank                        PlaceRooms, in batches
//   POST /query_dp_ranks, unknown rooms left out  LookupRooms, the same; it can wait for them
//   GET /health: 200 always                       health by service name, from state; NOT_SERVING
//                                                   while it drains (grpc_runtime_test)
//   polled each second, 15 times                  ResolveRanks and LookupRooms wait
//   bound to any address, nobody is asked who     loopback only, unless TLS or --insecure
// clang-format on
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/service/bootstrap/bootstrap_fixture.h"

namespace pageferry::bootstrap {
namespace {

using absl::StatusCode;

class BehaviourTest : public BootstrapTest {};

TEST_F(BehaviourTest, AnotherSizeThanTheFirstRanksIsNamedNotIgnored) {
  ASSERT_THAT(Register(Claim(0)), IsOk());
  auto other = Claim(1);
  other.mutable_shape()->set_pp(4);
  const absl::Status status = Register(other).status();
  EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition, Reason::kShapeMismatch));
  EXPECT_EQ(MetadataOf(status),
            (ErrorMetadata{{"field", "shape.pp"}, {"have", "2"}, {"got", "4"}}));
  for (const auto& change : std::vector<std::function<void(v1::RegisterRequest&)>>{
           [](auto& r) { r.mutable_profile()->set_page_tokens(64); },
           [](auto& r) {
             r.mutable_profile()->set_data_type(pageferry::topology::v1::DATA_TYPE_BFLOAT16);
           },
           [](auto& r) {
             r.mutable_profile()->set_layout(pageferry::topology::v1::KV_LAYOUT_HND);
           }}) {
    auto changed = Claim(1);
    change(changed);
    EXPECT_THAT(Register(changed),
                StatusIs(StatusCode::kFailedPrecondition, Reason::kProfileMismatch));
  }
}

TEST_F(BehaviourTest, AnotherPolicyThanTheFirstRanksIsRefused) {
  ASSERT_THAT(Register(Claim(0)), IsOk());
  auto other = Claim(1);
  other.set_dp_policy(v1::DP_POLICY_DIRECTORY);
  const absl::Status status = Register(other).status();
  EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_EQ(MetadataOf(status)["field"], "dp_policy");
}

TEST_F(BehaviourTest, AMissingFieldIsTheCallersErrorAndNamed) {
  for (const auto& [field, clear] :
       std::map<std::string, std::function<void(v1::RegisterRequest&)>>{
           {"engine", [](auto& r) { r.clear_engine(); }},
           {"role", [](auto& r) { r.clear_role(); }},
           {"shape", [](auto& r) { r.clear_shape(); }},
           {"agent_id", [](auto& r) { r.clear_agent_id(); }},
           {"incarnation", [](auto& r) { r.clear_incarnation(); }},
           {"endpoint", [](auto& r) { r.clear_endpoint(); }}}) {
    auto request = Claim(0);
    clear(request);
    const absl::Status status = Register(request).status();
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument)) << field;
    EXPECT_THAT(status.message(), testing::HasSubstr(field));
  }
}

TEST_F(BehaviourTest, FieldsOfALaterReleaseAreIgnored) {
  auto request = Claim(0);
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(900, 1);
  request.mutable_shape()
      ->GetReflection()
      ->MutableUnknownFields(request.mutable_shape())
      ->AddLengthDelimited(901, "later");
  EXPECT_THAT(Register(request), IsOk());
  EXPECT_EQ(GetEngine()->live_count(), 1);
}

TEST_F(BehaviourTest, OneRankThatRegistersAsOftenAsThereAreRanksMakesNothingReady) {
  for (int i = 0; i < 2 * kRanks; ++i) ASSERT_THAT(Register(Claim(0)), IsOk());
  EXPECT_FALSE(GetEngine()->ready());
  EXPECT_EQ(GetEngine()->missing_count(), kRanks - 1);
}

TEST_F(BehaviourTest, ASecondAgentOfACellIsDecidedByAgeAndTold) {
  ASSERT_OK_AND_ASSIGN(const auto first, Register(Claim(0)));
  auto older = Claim(0);
  older.set_agent_id("another");
  older.mutable_incarnation()->set_start_time_unix_nanos(50);
  EXPECT_THAT(Register(older), StatusIs(StatusCode::kFailedPrecondition, Reason::kSuperseded));
  auto younger = Claim(0);
  younger.set_agent_id("another");
  younger.mutable_incarnation()->set_start_time_unix_nanos(200);
  ASSERT_OK_AND_ASSIGN(const auto second, Register(younger));
  EXPECT_GT(second.epoch(), first.epoch());
  KeepAliveClient keep_alive(*stub_);
  EXPECT_EQ(keep_alive.Renew({first.lease_id()}), "SUPERSEDED");
  EXPECT_EQ(GetEngine()->ranks(0).agent().agent_id(), "another");
}

TEST_F(BehaviourTest, ARankThatIsGoneIsMissing) {
  RegisterAll();
  EXPECT_TRUE(GetEngine()->ready());
  clock_.Advance(absl::Seconds(2));
  for (int rank = 1; rank < kRanks; ++rank) ASSERT_THAT(Register(Claim(rank)), IsOk());
  clock_.Advance(absl::Seconds(2));
  const auto engine = GetEngine();
  EXPECT_FALSE(engine->ready());
  ASSERT_EQ(engine->missing_size(), 1);
  EXPECT_EQ(engine->missing(0).tp(), 0);
}

TEST_F(BehaviourTest, AnotherShapeIsFineOnceNobodyIsLeft) {
  ASSERT_THAT(Register(Claim(0)), IsOk());
  auto other = Claim(0);
  other.mutable_shape()->set_tp(8);
  EXPECT_THAT(Register(other), HasReason(Reason::kShapeMismatch));
  clock_.Advance(absl::Seconds(4));
  EXPECT_THAT(Register(other), IsOk());
  EXPECT_EQ(GetEngine()->shape().tp(), 8);
}

TEST_F(BehaviourTest, AnEngineIsDescribedBeforeItIsComplete) {
  ASSERT_THAT(Register(Claim(5)), IsOk());
  const auto engine = GetEngine();
  ASSERT_THAT(engine, IsOk());
  EXPECT_FALSE(engine->ready());
  EXPECT_EQ(engine->shape().dp() * engine->shape().tp() * engine->shape().pp(), kRanks);
  EXPECT_EQ(engine->profile().page_tokens(), 16);
  EXPECT_EQ(engine->dp_policy(), v1::DP_POLICY_ROOM_MODULO);
}

TEST_F(BehaviourTest, RanksAreAnsweredWhenAllAreThere) {
  ASSERT_THAT(Register(Claim(5)), IsOk());
  const absl::Status status = Resolve({5}).status();
  EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable, Reason::kEngineNotReady));
  EXPECT_THAT(MetadataOf(status)["missing"], testing::HasSubstr(Name(4)));
  RegisterAll();
  EXPECT_THAT(Resolve({5}), IsOk());
}

TEST_F(BehaviourTest, ARankThatCannotExistIsTheCallersError) {
  RegisterAll();
  v1::ResolveRanksRequest request;
  request.mutable_engine()->set_engine_id("prefill-0");
  request.add_coordinates()->set_cp(1);
  const absl::Status status = Call(&v1::Bootstrap::StubInterface::ResolveRanks, request).status();
  EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, Reason::kInvalidField));
  EXPECT_THAT(status.message(), testing::HasSubstr("cp"));
}

TEST_F(BehaviourTest, ACoordinateThatIsLeftOutIsTheFirst) {
  RegisterAll();
  v1::ResolveRanksRequest request;
  request.mutable_engine()->set_engine_id("prefill-0");
  request.add_coordinates();
  ASSERT_OK_AND_ASSIGN(const auto response,
                       Call(&v1::Bootstrap::StubInterface::ResolveRanks, request));
  EXPECT_EQ(response.ranks(0).agent().agent_id(), "agent-0");
}

TEST_F(BehaviourTest, AMethodThatIsNotThereIsUnimplemented) {
  grpc::GenericStub generic(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = generic.PrepareUnaryCall(
      &context, "/pageferry.bootstrap.v1.Bootstrap/Unregister", grpc::ByteBuffer(), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, &queue);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(BehaviourTest, RoomsThatAreNotKnownAreLeftOut) {
  ASSERT_THAT(Place({{7, 1}, {9, 0}}), IsOk());
  EXPECT_EQ(*Lookup({9, 8, 7}), "9@0 7@1 ");
}

TEST_F(BehaviourTest, ALookupWaitsForItsRoomsInsteadOfBeingPolled) {
  Async<absl::StatusOr<std::string>> lookup([this] { return Lookup({7}, 60); });
  ASSERT_TRUE(WaitingCalls(1));
  ASSERT_THAT(Place({{7, 1}}), IsOk());
  EXPECT_EQ(*lookup.Get(), "7@1 ");
  EXPECT_TRUE(WaitingCalls(0));
}

TEST_F(BehaviourTest, AWaitIsBoundedByTheCallersDeadline) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  EXPECT_THAT(Lookup({7}, 60, &context), StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(WaitingCalls(0));
}

TEST_F(BehaviourTest, HealthIsAskedByTheNameOfTheService) {
  const auto health = grpc::health::v1::Health::NewStub(channel_);
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("pageferry.bootstrap.v1.Bootstrap");
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(health->Check(&context, request, &response).ok());
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  grpc::ClientContext other;
  request.set_service("somebody.else");
  EXPECT_EQ(health->Check(&other, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(BehaviourTest, OtherHostsAreNotServedInClearTextUnlessItIsSaid) {
  ServerOptions options;
  options.listen = "0.0.0.0:0";
  options.clock = &clock_;
  options.scheduler = &clock_;
  EXPECT_THAT(BootstrapServer::Start(options),
              StatusIs(StatusCode::kFailedPrecondition, Reason::kPolicy));
  options.insecure = true;
  EXPECT_THAT(BootstrapServer::Start(options), IsOk());
}

}  // namespace
}  // namespace pageferry::bootstrap
