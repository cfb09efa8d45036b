#include "tools/pageferryctl/words.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "libs/common/host_port.h"
#include "libs/common/topology.h"

namespace pageferry::ctl {
namespace {

std::string Bare(absl::string_view name, absl::string_view prefix, int number) {
  if (name.empty()) return absl::StrCat(number);
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

}  // namespace

std::string Word(agent::v1::RoomState state) {
  return Bare(agent::v1::RoomState_Name(state), "ROOM_STATE_", state);
}

std::string Word(agent::v1::AgentState state) {
  return Bare(agent::v1::AgentState_Name(state), "AGENT_STATE_", state);
}

std::string Word(topology::v1::Role role) {
  return Bare(topology::v1::Role_Name(role), "ROLE_", role);
}

std::string Text(const topology::v1::RankCoordinate& coordinate) {
  return ToString(RankCoordinate{
      .dp = coordinate.dp(), .cp = coordinate.cp(), .tp = coordinate.tp(), .pp = coordinate.pp()});
}

std::string Text(const topology::v1::AgentRef& agent) {
  return absl::StrCat(agent.agent_id(), " epoch ", agent.epoch());
}

std::string Text(const topology::v1::Endpoint& endpoint) {
  if (endpoint.host().empty()) return "";
  return ToString(HostPort{.host = endpoint.host(), .port = endpoint.port()});
}

std::string Text(const google::protobuf::Duration& duration) {
  const int64_t total = duration.seconds();
  const int64_t milliseconds = duration.nanos() / 1'000'000;
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 60 * kMinute;
  constexpr int64_t kDay = 24 * kHour;
  const auto two = [](int64_t number) { return absl::Dec(number, absl::kZeroPad2); };
  if (total < 0 || milliseconds < 0) return "0ms";
  if (total == 0) return absl::StrCat(milliseconds, "ms");
  if (total < kMinute) return absl::StrCat(total, ".", milliseconds / 100, "s");
  if (total < kHour) return absl::StrCat(total / kMinute, "m", two(total % kMinute), "s");
  if (total < kDay) return absl::StrCat(total / kHour, "h", two(total % kHour / kMinute), "m");
  return absl::StrCat(total / kDay, "d", two(total % kDay / kHour), "h");
}

}  // namespace pageferry::ctl
