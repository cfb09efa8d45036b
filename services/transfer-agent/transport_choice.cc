#include "services/transfer-agent/transport_choice.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/common/error.h"

namespace pageferry::agent {
namespace {

using transport::TransportKind;
using transport::TransportName;

constexpr std::array kAllKinds = {TransportKind::kLocal, TransportKind::kRdma, TransportKind::kTcp,
                                  TransportKind::kGrpc};

const TransportOffer* FindOffer(const std::vector<TransportOffer>& offers, TransportKind kind) {
  const auto found = std::find_if(offers.begin(), offers.end(),
                                  [&](const TransportOffer& offer) { return offer.kind == kind; });
  return found == offers.end() ? nullptr : &*found;
}

bool Contains(const std::vector<TransportKind>& kinds, TransportKind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

/// Empty where the way can be used.
std::string WhyNot(TransportKind kind, const TransportPolicy& policy,
                   const std::vector<TransportOffer>& offers, const TransportFacts& facts) {
  if (!Contains(policy.allowed, kind)) return "not allowed by the prefill agent";
  if (policy.required.has_value() && *policy.required != kind) {
    return absl::StrCat("the prefill agent requires ", TransportName(*policy.required));
  }
  const TransportOffer* const offer = FindOffer(offers, kind);
  if (offer == nullptr) return "not offered by the decode agent";
  if (!offer->unusable.empty()) return absl::StrCat("failed: ", offer->unusable);
  if (!offer->required) {
    for (const TransportOffer& other : offers) {
      if (other.required) {
        return absl::StrCat("the decode agent requires ", TransportName(other.kind));
      }
    }
  }
  if (kind == TransportKind::kLocal) {
    if (facts.own_host.empty() || facts.own_host != facts.peer_host) return "not on one host";
    if (!facts.regions_map_locally) return "the prefill agent's memory cannot be mapped by others";
  }
  return "";
}

}  // namespace

absl::StatusOr<TransportChoice> ChooseTransport(const TransportPolicy& policy,
                                                const std::vector<TransportOffer>& offers,
                                                const TransportFacts& facts) {
  ErrorMetadata why_not;
  for (const TransportKind kind : policy.allowed) {
    const std::string why = WhyNot(kind, policy, offers, facts);
    if (!why.empty()) {
      why_not.emplace(TransportName(kind), why);
      continue;
    }
    std::string reason = kind == TransportKind::kLocal ? "one host" : "both sides allow it";
    for (const auto& [name, text] : why_not) absl::StrAppend(&reason, "; not ", name, ": ", text);
    return TransportChoice{.kind = kind, .address = "", .reason = std::move(reason)};
  }
  for (const TransportKind kind : kAllKinds) {
    if (!why_not.contains(std::string(TransportName(kind)))) {
      why_not.emplace(TransportName(kind), WhyNot(kind, policy, offers, facts));
    }
  }

  std::vector<absl::string_view> offered;
  std::optional<TransportKind> required = policy.required;
  for (const TransportOffer& offer : offers) {
    if (offer.unusable.empty()) offered.push_back(TransportName(offer.kind));
    if (offer.required && !required.has_value()) required = offer.kind;
  }
  std::string message = "no way to move pages";
  for (const auto& [name, text] : why_not) absl::StrAppend(&message, "; ", name, ": ", text);
  if (!required.has_value()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport, message, why_not);
  }
  why_not["required"] = std::string(TransportName(*required));
  why_not["offered"] = absl::StrJoin(offered, ",");
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kPolicy, message, why_not);
}

absl::StatusOr<std::vector<TransportKind>> ParseTransportList(
    const std::vector<std::string>& names) {
  std::vector<TransportKind> kinds;
  for (const std::string& name : names) {
    const std::optional<TransportKind> kind = transport::ParseTransportName(name);
    if (!kind.has_value() || Contains(kinds, *kind)) {
      return InvalidField("transports", name, "local, rdma, tcp, grpc, each once");
    }
    kinds.push_back(*kind);
  }
  if (kinds.empty()) return InvalidField("transports", "", "at least one");
  return kinds;
}

}  // namespace pageferry::agent
