#include "services/transfer-agent/hello.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "services/transfer-agent/engines_match.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {
namespace {

absl::Status StaleEpoch(const AgentRef& have, const AgentRef& got) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                   absl::StrCat("this is agent ", ToString(have), ", not ", ToString(got)),
                   {{"have", absl::StrCat(have.epoch.value())},
                    {"got", absl::StrCat(got.epoch.value())},
                    {"agent", have.id.value()}});
}

absl::Status CheckProtocol(int32_t min, int32_t max) {
  if (min <= kPeerProtocol && kPeerProtocol <= max) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kFailedPrecondition, Reason::kProtocolVersion,
      absl::StrCat("protocols ", min, " to ", max, " and ", kPeerProtocol, " have none in common"),
      {{"offered", absl::StrCat(min, "-", max)}, {"supported", absl::StrCat(kPeerProtocol)}});
}

absl::Status CheckHello(const OwnSide& own, const Hello& hello) {
  PAGEFERRY_RETURN_IF_ERROR(CheckProtocol(hello.protocol_min, hello.protocol_max));
  if (!own.registered) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kEngineNotRegistered,
                     "no engine is registered at this agent");
  }
  if (!(hello.expected == own.agent)) return StaleEpoch(own.agent, hello.expected);
  if (own.draining) {
    return MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "the agent is draining");
  }
  PAGEFERRY_RETURN_IF_ERROR(EnginesMatch(own.engine, hello.engine));
  return CheckBuffers(hello.engine.profile, hello.regions);
}

class RegionSizes {
 public:
  explicit RegionSizes(const std::vector<transport::RemoteRegion>& regions) {
    for (const transport::RemoteRegion& region : regions) sizes_.emplace(region.id, region.size);
  }

  absl::Status Check(const Buffer& buffer) const {
    if (buffer.item_size.value() == 0) return absl::OkStatus();
    const auto found = sizes_.find(buffer.region);
    if (found == sizes_.end()) {
      return InvalidField("region_id", absl::StrCat(buffer.region.value()), "a known region");
    }
    const ByteCount end = buffer.offset + buffer.item_size * buffer.item_count;
    if (end <= found->second) return absl::OkStatus();
    return InvalidField("offset_bytes", absl::StrCat(buffer.offset.value()),
                        absl::StrCat("offset + count * item_bytes up to ", found->second.value()));
  }

 private:
  absl::flat_hash_map<RegionId, ByteCount> sizes_;
};

}  // namespace

std::string ToString(const AgentRef& agent) {
  return absl::StrCat(agent.id.value(), "/", agent.epoch.value());
}

absl::Status CheckBuffers(const KvProfile& profile,
                          const std::vector<transport::RemoteRegion>& regions) {
  const RegionSizes sizes(regions);
  for (size_t i = 0; i < profile.entries.size(); ++i) {
    PAGEFERRY_RETURN_IF_ERROR(sizes.Check(profile.entries[i].pages),
                              InField(_, "engine.profile.entries", static_cast<int64_t>(i)));
  }
  for (size_t i = 0; i < profile.states.size(); ++i) {
    for (const StateEntry& entry : profile.states[i].entries) {
      PAGEFERRY_RETURN_IF_ERROR(sizes.Check(entry.items),
                                InField(_, "engine.profile.states", static_cast<int64_t>(i)));
    }
  }
  for (size_t i = 0; i < profile.aux.size(); ++i) {
    PAGEFERRY_RETURN_IF_ERROR(sizes.Check(profile.aux[i].slots),
                              InField(_, "engine.profile.aux", static_cast<int64_t>(i)));
  }
  return absl::OkStatus();
}

Hello MakeHello(const OwnSide& own, const SessionId& session, const AgentRef& expected,
                const UnusableWays& unusable) {
  Hello hello;
  hello.session = session;
  hello.agent = own.agent;
  hello.expected = expected;
  hello.engine = own.engine;
  hello.host_id = own.host_id;
  hello.regions = own.regions;
  for (const transport::TransportKind kind : own.policy.allowed) {
    TransportOffer offer{.kind = kind, .required = own.policy.required == kind};
    if (const auto address = own.addresses.find(kind); address != own.addresses.end()) {
      offer.address = address->second;
    }
    if (const auto why = unusable.find(kind); why != unusable.end()) {
      offer.unusable = why->second.substr(0, 1000);
    }
    hello.transports.push_back(std::move(offer));
  }
  return hello;
}

HelloReply AnswerHello(const OwnSide& own, const Hello& hello) {
  HelloReply reply;
  reply.session = hello.session;
  reply.error = CheckHello(own, hello);
  if (!reply.error.ok()) return reply;
  const TransportFacts facts{
      .own_host = own.host_id,
      .peer_host = hello.host_id,
      .regions_map_locally = std::ranges::all_of(
          own.regions, [](const auto& region) { return region.local.has_value(); })};
  absl::StatusOr<TransportChoice> choice = ChooseTransport(own.policy, hello.transports, facts);
  if (!choice.ok()) {
    reply.error = choice.status();
    return reply;
  }
  reply.transport = *std::move(choice);
  if (const auto address = own.addresses.find(reply.transport.kind);
      address != own.addresses.end()) {
    reply.transport.address = address->second;
  }
  reply.protocol = kPeerProtocol;
  reply.agent = own.agent;
  reply.engine = own.engine;
  reply.host_id = own.host_id;
  reply.regions = own.regions;
  reply.room_credit = own.room_credit;
  return reply;
}

absl::Status CheckHelloReply(const OwnSide& own, const Hello& sent, const HelloReply& reply) {
  PAGEFERRY_RETURN_IF_ERROR(CheckProtocol(reply.protocol, reply.protocol));
  if (reply.session != sent.session) {
    return InvalidField("session_id", reply.session.value(), sent.session.value());
  }
  if (!(reply.agent == sent.expected)) return StaleEpoch(reply.agent, sent.expected);
  PAGEFERRY_RETURN_IF_ERROR(EnginesMatch(reply.engine, own.engine));
  PAGEFERRY_RETURN_IF_ERROR(CheckBuffers(reply.engine.profile, reply.regions));
  const bool offered = std::ranges::any_of(sent.transports, [&](const TransportOffer& offer) {
    return offer.kind == reply.transport.kind && offer.unusable.empty();
  });
  if (!offered) {
    return InvalidField("transport.kind", transport::TransportName(reply.transport.kind),
                        "a way that was offered");
  }
  return absl::OkStatus();
}

}  // namespace pageferry::agent
