#include "services/bootstrap/validate.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "pageferry/topology/v1/topology.pb.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::bootstrap {
namespace {

using absl::StatusCode;
namespace topology = pageferry::topology::v1;

v1::RegisterRequest Good() {
  v1::RegisterRequest request;
  request.mutable_engine()->set_engine_id("Engine_1.a-b");
  request.set_role(topology::ROLE_DECODE);
  request.mutable_shape()->set_dp(1);
  request.mutable_shape()->set_cp(1);
  request.mutable_shape()->set_tp(4);
  request.mutable_shape()->set_pp(1);
  auto& profile = *request.mutable_profile();
  profile.set_page_tokens(16);
  profile.set_data_type(topology::DATA_TYPE_BFLOAT16);
  profile.set_layout(topology::KV_LAYOUT_HND);
  profile.set_attention(topology::ATTENTION_KIND_MHA);
  profile.set_total_kv_heads(8);
  profile.set_head_dim(128);
  request.mutable_coordinate()->set_tp(3);
  request.set_agent_id("agent");
  request.mutable_incarnation()->set_start_time_unix_nanos(1);
  request.mutable_endpoint()->set_host("10.1.2.3");
  request.mutable_endpoint()->set_port(7000);
  return request;
}

TEST(ValidateTest, AGoodRegisterIsReadWhole) {
  auto request = Good();
  request.mutable_ttl()->set_seconds(5);
  request.set_last_epoch(17);
  (*request.mutable_labels())["zone"] = "a";
  request.add_transports("tcp");
  request.mutable_metrics_endpoint()->set_host("127.0.0.1");
  request.mutable_metrics_endpoint()->set_port(9100);
  ASSERT_OK_AND_ASSIGN(const Claim claim, ReadRegister(request, {}));
  EXPECT_EQ(claim.key.name_space.value(), "default");
  EXPECT_EQ(claim.traits.role, Role::kDecode);
  EXPECT_EQ(claim.traits.shape.tp, 4);
  EXPECT_EQ(claim.traits.profile.head_dim, 128);
  EXPECT_EQ(claim.coordinate.tp, 3);
  EXPECT_EQ(claim.incarnation.agent.value(), "agent");
  EXPECT_EQ(claim.ttl, absl::Seconds(5));
  EXPECT_EQ(claim.last_epoch, Epoch(17));
  EXPECT_EQ(claim.info.labels.at("zone"), "a");
  EXPECT_EQ(claim.info.transports, std::vector<std::string>{"tcp"});
  EXPECT_EQ(claim.info.metrics_endpoint.port, 9100);
}

TEST(ValidateTest, TheTtlIsTheDefaultOrMovedIntoWhatTheOperatorAllows) {
  const RequestLimits limits{
      .default_ttl = absl::Seconds(7), .min_ttl = absl::Seconds(2), .max_ttl = absl::Seconds(9)};
  auto request = Good();
  EXPECT_EQ(ReadRegister(request, limits)->ttl, absl::Seconds(7));
  request.mutable_ttl()->set_seconds(1);
  EXPECT_EQ(ReadRegister(request, limits)->ttl, absl::Seconds(2));
  request.mutable_ttl()->set_seconds(600);
  EXPECT_EQ(ReadRegister(request, limits)->ttl, absl::Seconds(9));
}

struct BadRegister {
  Reason reason;
  const char* field;
  std::function<void(v1::RegisterRequest&)> spoil;
};

TEST(ValidateTest, EachBadFieldOfARegisterIsNamed) {
  using R = v1::RegisterRequest;
  const std::string long_text(257, 'x');
  const std::vector<BadRegister> rows = {
      {Reason::kInvalidField, "engine.engine_id", [](R& r) { r.clear_engine(); }},
      {Reason::kInvalidField, "engine.engine_id",
       [](R& r) { r.mutable_engine()->set_engine_id("a/b"); }},
      {Reason::kInvalidField, "engine.engine_id",
       [](R& r) { r.mutable_engine()->set_engine_id(std::string(129, 'a')); }},
      {Reason::kInvalidField, "engine.namespace",
       [](R& r) { r.mutable_engine()->set_namespace_("Upper"); }},
      {Reason::kInvalidField, "engine.namespace",
       [](R& r) { r.mutable_engine()->set_namespace_("*"); }},
      {Reason::kInvalidField, "engine.namespace",
       [](R& r) { r.mutable_engine()->set_namespace_(std::string(64, 'a')); }},
      {Reason::kUnknownEnum, "role", [](R& r) { r.clear_role(); }},
      {Reason::kUnknownEnum, "role", [](R& r) { r.set_role(static_cast<topology::Role>(99)); }},
      {Reason::kInvalidField, "shape", [](R& r) { r.clear_shape(); }},
      {Reason::kInvalidField, "shape.cp", [](R& r) { r.mutable_shape()->set_cp(0); }},
      {Reason::kInvalidField, "shape.tp", [](R& r) { r.mutable_shape()->set_tp(65'537); }},
      {Reason::kInvalidField, "shape",
       [](R& r) {
         r.mutable_shape()->set_dp(65'536);
         r.mutable_shape()->set_tp(65'536);
       }},
      {Reason::kInvalidField, "profile", [](R& r) { r.clear_profile(); }},
      {Reason::kUnknownEnum, "profile.data_type",
       [](R& r) { r.mutable_profile()->clear_data_type(); }},
      {Reason::kUnknownEnum, "profile.layout", [](R& r) { r.mutable_profile()->clear_layout(); }},
      {Reason::kUnknownEnum, "profile.attention",
       [](R& r) { r.mutable_profile()->clear_attention(); }},
      {Reason::kInvalidField, "profile.page_tokens",
       [](R& r) { r.mutable_profile()->set_page_tokens(0); }},
      {Reason::kInvalidField, "profile.total_kv_heads",
       [](R& r) { r.mutable_profile()->set_total_kv_heads(0); }},
      {Reason::kInvalidField, "profile.total_kv_heads",
       [](R& r) { r.mutable_profile()->set_attention(topology::ATTENTION_KIND_MLA); }},
      {Reason::kInvalidField, "profile.head_dim",
       [](R& r) { r.mutable_profile()->set_head_dim(-1); }},
      {Reason::kInvalidField, "profile.layer_count",
       [](R& r) { r.mutable_profile()->set_layer_count(65'537); }},
      {Reason::kInvalidField, "profile.kv_shards",
       [](R& r) { r.mutable_profile()->set_kv_shards(-1); }},
      {Reason::kInvalidField, "profile.decode_cp",
       [](R& r) { r.mutable_profile()->set_decode_cp(-1); }},
      {Reason::kInvalidField, "profile.model_fingerprint",
       [&](R& r) { r.mutable_profile()->set_model_fingerprint(long_text); }},
      {Reason::kInvalidField, "coordinate", [](R& r) { r.clear_coordinate(); }},
      {Reason::kInvalidField, "coordinate.tp", [](R& r) { r.mutable_coordinate()->set_tp(4); }},
      {Reason::kInvalidField, "coordinate.dp", [](R& r) { r.mutable_coordinate()->set_dp(-1); }},
      {Reason::kInvalidField, "agent_id", [](R& r) { r.clear_agent_id(); }},
      {Reason::kInvalidField, "incarnation.start_time_unix_nanos",
       [](R& r) { r.clear_incarnation(); }},
      {Reason::kInvalidField, "endpoint.port", [](R& r) { r.clear_endpoint(); }},
      {Reason::kInvalidField, "endpoint.host", [](R& r) { r.mutable_endpoint()->clear_host(); }},
      {Reason::kInvalidField, "endpoint.port",
       [](R& r) { r.mutable_endpoint()->set_port(65'536); }},
      {Reason::kBadEndpoint, "endpoint", [](R& r) { r.mutable_endpoint()->set_host("0.0.0.0"); }},
      {Reason::kBadEndpoint, "metrics_endpoint",
       [](R& r) {
         r.mutable_metrics_endpoint()->set_host("::");
         r.mutable_metrics_endpoint()->set_port(1);
       }},
      {Reason::kInvalidField, "ttl", [](R& r) { r.mutable_ttl()->set_seconds(601); }},
      {Reason::kInvalidField, "ttl", [](R& r) { r.mutable_ttl()->set_nanos(999'999'999); }},
      {Reason::kInvalidField, "ttl", [](R& r) { r.mutable_ttl()->set_seconds(-1); }},
      {Reason::kInvalidField, "ttl",
       [](R& r) { r.mutable_ttl()->set_seconds(std::numeric_limits<int64_t>::max()); }},
      {Reason::kInvalidField, "last_epoch", [](R& r) { r.set_last_epoch(-1); }},
      {Reason::kInvalidField, "last_epoch",
       [](R& r) { r.set_last_epoch(std::numeric_limits<int64_t>::max()); }},
      {Reason::kUnknownEnum, "dp_policy",
       [](R& r) { r.set_dp_policy(static_cast<v1::DpPolicy>(9)); }},
      {Reason::kInvalidField, "dp_policy", [](R& r) { r.set_dp_policy(v1::DP_POLICY_DIRECTORY); }},
      {Reason::kInvalidField, "labels",
       [](R& r) {
         for (int i = 0; i < 33; ++i) (*r.mutable_labels())[absl::StrCat(i)] = "";
       }},
      {Reason::kInvalidField, "labels", [](R& r) { (*r.mutable_labels())[""] = "x"; }},
      {Reason::kInvalidField, "labels",
       [](R& r) { (*r.mutable_labels())["a"] = std::string(64, 'x'); }},
      {Reason::kInvalidField, "transports",
       [](R& r) {
         for (int i = 0; i < 17; ++i) r.add_transports("tcp");
       }},
      {Reason::kInvalidField, "transports", [](R& r) { r.add_transports(""); }},
  };
  for (const BadRegister& row : rows) {
    auto request = Good();
    row.spoil(request);
    SCOPED_TRACE(absl::StrCat(row.field, ": ", request.ShortDebugString()));
    const absl::Status status = ReadRegister(request, {}).status();
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, row.reason));
    ErrorMetadata metadata = MetadataOf(status);
    EXPECT_EQ(metadata["field"], row.field);
    if (row.reason == Reason::kInvalidField) {
      EXPECT_TRUE(metadata.contains("value") && metadata.contains("allowed"));
    }
  }
}

TEST(ValidateTest, EndpointsThatOthersCannotDialAreRefused) {
  const std::string label63(63, 'a');
  const std::vector<std::string> reachable = {
      "10.0.0.1", "2001:db8::1",           "fe80::1", "::ffff:10.0.0.1",
      "node-3",   "a.b.svc.cluster.local", "a.b.",    "under_score",
      "1host",    label63 + "." + label63};
  const std::vector<std::string> loopback = {"127.0.0.1",        "127.9.9.9", "::1",
                                             "::ffff:127.0.0.1", "localhost", "LOCALHOST.",
                                             "a.localhost"};
  const std::vector<std::string> never = {"0.0.0.0",
                                          "0.1.2.3",
                                          "::",
                                          "0:0:0:0:0:0:0:0",
                                          "::ffff:0.0.0.0",
                                          "224.0.0.1",
                                          "255.255.255.255",
                                          "ff02::1",
                                          "*",
                                          "[::1]",
                                          "10.0.0.1:80",
                                          "127.1",
                                          "0x7f.1",
                                          "2130706433",
                                          "a..b",
                                          "-a",
                                          "a-",
                                          "a b",
                                          "fe80::1%eth0",
                                          std::string(64, 'a'),
                                          std::string(254, 'a'),
                                          "caf\xc3\xa9",
                                          std::string("a\0b", 3)};
  for (const std::string& host : reachable) {
    EXPECT_THAT(CheckEndpoint({host, 1}, "endpoint", false), IsOk()) << host;
  }
  for (const std::string& host : loopback) {
    EXPECT_THAT(CheckEndpoint({host, 1}, "endpoint", true), IsOk()) << host;
    EXPECT_THAT(CheckEndpoint({host, 1}, "endpoint", false), HasReason(Reason::kBadEndpoint))
        << host;
  }
  for (const std::string& host : never) {
    EXPECT_THAT(CheckEndpoint({host, 1}, "endpoint", true), HasReason(Reason::kBadEndpoint))
        << host;
  }
}

TEST(ValidateTest, UnknownFieldsAreTolerated) {
  auto request = Good();
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(999, 1);
  EXPECT_THAT(ReadRegister(request, {}), IsOk());
}

TEST(ValidateTest, WaitsTokensAndNumbersOfOtherRequestsAreChecked) {
  v1::ResolveRanksRequest resolve;
  resolve.mutable_engine()->set_engine_id("a");
  resolve.add_coordinates();
  EXPECT_EQ(ReadResolveRanks(resolve)->wait, absl::ZeroDuration());
  resolve.mutable_wait()->set_seconds(60);
  EXPECT_EQ(ReadResolveRanks(resolve)->wait, absl::Seconds(60));
  resolve.mutable_wait()->set_nanos(1);
  EXPECT_THAT(ReadResolveRanks(resolve), HasReason(Reason::kInvalidField));

  v1::PlaceRoomsRequest place;
  place.mutable_engine()->set_engine_id("a");
  place.add_placements()->set_dp_rank(65'535);
  EXPECT_EQ(ReadPlaceRooms(place)->ttl, absl::Minutes(5));
  place.mutable_placements(0)->set_dp_rank(65'536);
  EXPECT_THAT(ReadPlaceRooms(place), HasReason(Reason::kInvalidField));
  place.mutable_placements(0)->set_dp_rank(0);
  place.mutable_placements(0)->set_room_id(-1);
  EXPECT_THAT(ReadPlaceRooms(place), HasReason(Reason::kInvalidField));
  place.mutable_placements(0)->set_room_id(std::numeric_limits<int64_t>::max());
  place.mutable_ttl()->set_seconds(3601);
  EXPECT_THAT(ReadPlaceRooms(place), HasReason(Reason::kInvalidField));

  v1::LookupRoomsRequest lookup;
  lookup.mutable_engine()->set_engine_id("a");
  lookup.add_room_ids(-1);
  EXPECT_THAT(ReadLookupRooms(lookup), HasReason(Reason::kInvalidField));

  v1::ListEnginesRequest list;
  list.set_namespace_("*");
  list.set_page_token(MakePageToken({NamespaceName("blue"), EngineId("b")}));
  EXPECT_EQ(ReadListEngines(list)->from, (EngineKey{NamespaceName("blue"), EngineId("b")}));
  EXPECT_EQ(ReadListEngines(list)->limit, 100);
  for (const char* token : {"/", "blue", "blue/", "BLUE/b", "blue/b/c"}) {
    list.set_page_token(token);
    EXPECT_THAT(ReadListEngines(list), HasReason(Reason::kInvalidField)) << token;
  }
  list.clear_page_token();
  list.set_page_size(1001);
  EXPECT_THAT(ReadListEngines(list), HasReason(Reason::kInvalidField));

  v1::WatchEnginesRequest watch;
  watch.set_resume_version(-1);
  EXPECT_THAT(ReadWatchEngines(watch), HasReason(Reason::kInvalidField));
  watch.clear_resume_version();
  for (int i = 0; i < 1001; ++i) watch.add_engine_ids("a");
  EXPECT_THAT(ReadWatchEngines(watch), HasReason(Reason::kInvalidField));

  EXPECT_THAT(ReadKeepAlive({}), HasReason(Reason::kInvalidField));
  EXPECT_THAT(ReadDeregister({}), HasReason(Reason::kInvalidField));
}

}  // namespace
}  // namespace pageferry::bootstrap
