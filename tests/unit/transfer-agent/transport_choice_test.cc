#include "services/transfer-agent/transport_choice.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "tests/testing/status_matchers.h"

namespace pageferry::agent {
namespace {

using transport::TransportKind;

TEST(TransportChoiceTest, FollowsTheOrderOfThePrefillSide) {
  const TransportPolicy policy{.allowed = {TransportKind::kRdma, TransportKind::kLocal}};
  const TransportFacts facts{.own_host = "h", .peer_host = "h", .regions_map_locally = true};
  const auto choice = ChooseTransport(policy, {{.kind = TransportKind::kLocal}}, facts);
  ASSERT_THAT(choice, IsOk());
  EXPECT_EQ(choice->kind, TransportKind::kLocal);
  EXPECT_EQ(choice->reason, "one host; not rdma: not offered by the decode agent");
}

TEST(TransportChoiceTest, NamesEachWayAndWhyNot) {
  const TransportPolicy policy{.allowed = {TransportKind::kLocal, TransportKind::kTcp}};
  TransportFacts facts{.own_host = "h", .peer_host = "other", .regions_map_locally = true};
  std::vector<TransportOffer> offers = {{.kind = TransportKind::kLocal},
                                        {.kind = TransportKind::kTcp, .unusable = "no route"}};
  absl::Status status = ChooseTransport(policy, offers, facts).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport));
  EXPECT_EQ(MetadataOf(status).at("local"), "not on one host");
  EXPECT_EQ(MetadataOf(status).at("tcp"), "failed: no route");
  EXPECT_EQ(MetadataOf(status).at("rdma"), "not allowed by the prefill agent");

  facts.peer_host = "h";
  facts.regions_map_locally = false;
  status = ChooseTransport(policy, offers, facts).status();
  EXPECT_EQ(MetadataOf(status).at("local"),
            "the prefill agent's memory cannot be mapped by others");

  offers[1].required = true;
  status = ChooseTransport(policy, offers, facts).status();
  EXPECT_THAT(status, HasReason(Reason::kPolicy));
  EXPECT_EQ(MetadataOf(status).at("required"), "tcp");
  EXPECT_EQ(MetadataOf(status).at("offered"), "local");
}

TEST(TransportChoiceTest, ARequiredWayExcludesTheOthers) {
  const TransportFacts facts{.own_host = "h", .peer_host = "h", .regions_map_locally = true};
  const TransportPolicy policy{.allowed = {TransportKind::kLocal, TransportKind::kTcp},
                               .required = TransportKind::kTcp};
  const std::vector<TransportOffer> offers = {{.kind = TransportKind::kLocal},
                                              {.kind = TransportKind::kTcp}};
  EXPECT_EQ(ChooseTransport(policy, offers, facts)->kind, TransportKind::kTcp);
}

}  // namespace
}  // namespace pageferry::agent
