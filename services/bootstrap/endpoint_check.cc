#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "libs/common/error.h"
#include "services/bootstrap/validate.h"

namespace pageferry::bootstrap {
namespace {

constexpr size_t kMaxHost = 253;
constexpr int32_t kMaxPort = 65'535;

enum class Kind { kHost, kLoopback, kWildcard, kUnreachable, kMalformed };

Kind KindOfIPv4(const uint8_t* bytes) {
  constexpr uint8_t kLoopbackNet = 127;
  constexpr uint8_t kFirstMulticast = 224;
  if (bytes[0] == 0) return Kind::kWildcard;
  if (bytes[0] == kLoopbackNet) return Kind::kLoopback;
  return bytes[0] >= kFirstMulticast ? Kind::kUnreachable : Kind::kHost;
}

Kind KindOfIPv6(const in6_addr& address) {
  if (IN6_IS_ADDR_UNSPECIFIED(&address)) return Kind::kWildcard;
  if (IN6_IS_ADDR_LOOPBACK(&address)) return Kind::kLoopback;
  if (IN6_IS_ADDR_MULTICAST(&address)) return Kind::kUnreachable;
  if (IN6_IS_ADDR_V4MAPPED(&address) || IN6_IS_ADDR_V4COMPAT(&address)) {
    return KindOfIPv4(address.s6_addr + 12);
  }
  return Kind::kHost;
}

bool IsLabel(absl::string_view label) {
  constexpr size_t kMaxLabel = 63;
  if (label.empty() || label.size() > kMaxLabel) return false;
  if (label.front() == '-' || label.back() == '-') return false;
  for (const char c : label) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') return false;
  }
  return true;
}

bool IsNumber(absl::string_view label) {
  const bool hex = absl::StartsWithIgnoreCase(label, "0x");
  for (const char c : label.substr(hex ? 2 : 0)) {
    const auto byte = static_cast<unsigned char>(c);
    if (hex ? !absl::ascii_isxdigit(byte) : !absl::ascii_isdigit(byte)) return false;
  }
  return true;
}

Kind KindOfName(absl::string_view host) {
  (void)absl::ConsumeSuffix(&host, ".");
  const std::vector<absl::string_view> labels = absl::StrSplit(host, '.');
  for (const absl::string_view label : labels) {
    if (!IsLabel(label)) return Kind::kMalformed;
  }
  // Resolvers read "127.1" and "0x7f.1" as addresses; a real name does not end in a number.
  if (IsNumber(labels.back())) return Kind::kMalformed;
  const bool local = absl::EqualsIgnoreCase(labels.back(), "localhost") ||
                     absl::EqualsIgnoreCase(host, "localhost.localdomain");
  return local ? Kind::kLoopback : Kind::kHost;
}

Kind KindOf(const std::string& host) {
  if (host.empty() || host.size() > kMaxHost) return Kind::kMalformed;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    std::array<uint8_t, sizeof(v4)> bytes{};
    std::memcpy(bytes.data(), &v4, sizeof(v4));
    return KindOfIPv4(bytes.data());
  }
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return KindOfIPv6(v6);
  return KindOfName(host);
}

absl::string_view WhyNot(Kind kind, bool allow_loopback) {
  switch (kind) {
    case Kind::kHost:
      return "";
    case Kind::kLoopback:
      return allow_loopback ? "" : "is a loopback address, which other hosts cannot reach";
    case Kind::kWildcard:
      return "is a wildcard, which nobody can dial";
    case Kind::kUnreachable:
      return "is a multicast or broadcast address";
    case Kind::kMalformed:
      return "is neither an address nor a host name";
  }
  return "";
}

}  // namespace

absl::Status CheckEndpoint(const Endpoint& endpoint, absl::string_view field, bool allow_loopback) {
  if (endpoint.port < 1 || endpoint.port > kMaxPort) {
    return InvalidField(std::string(absl::StrCat(field, ".port")), absl::StrCat(endpoint.port),
                        "1 to 65535");
  }
  if (endpoint.host.empty()) {
    return InvalidField(std::string(absl::StrCat(field, ".host")), "", "a host");
  }
  const absl::string_view why_not = WhyNot(KindOf(endpoint.host), allow_loopback);
  if (why_not.empty()) return absl::OkStatus();
  const std::string text = absl::StrCat(endpoint.host, " port ", endpoint.port);
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadEndpoint,
                   std::string(absl::StrCat(field, ": ", text, " ", why_not)),
                   {{"endpoint", text}, {"field", std::string(field)}});
}

}  // namespace pageferry::bootstrap
