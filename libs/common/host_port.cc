#include "libs/common/host_port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/error.h"
#include "libs/common/status.h"

namespace pageferry {
namespace {

constexpr absl::string_view kForm = "host:port, [IPv6]:port";

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

absl::StatusOr<std::vector<Address>> Resolve(const HostPort& host_port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host_port.host.c_str(), absl::StrCat(host_port.port).c_str(), &hints, &found);
  if (error != 0) {
    return InvalidField("address", ToString(host_port),
                        absl::StrCat("a host that resolves (", gai_strerror(error), ")"));
  }
  std::vector<Address> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (info->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address& address = addresses.emplace_back();
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.length = info->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

bool IsLoopbackAddress(const Address& address) {
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address.storage, sizeof(v4));
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  if (address.storage.ss_family != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address.storage, sizeof(v6));
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return v6.sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool HasIpv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

absl::StatusOr<int> Listen(const Address& address, const HostPort& host_port) {
  const std::string text = ToString(host_port);
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  const int off = 0;
  if (fd >= 0) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address.storage.ss_family == AF_INET6) {
      setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    const auto* const raw = reinterpret_cast<const sockaddr*>(&address.storage);
    if (bind(fd, raw, address.length) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  }
  const int error = errno;
  if (fd >= 0) close(fd);
  if (error == EADDRINUSE) {
    return MakeError(absl::StatusCode::kUnavailable, Reason::kInUse,
                     absl::StrCat("address ", text, " is in use by another server"),
                     {{"address", text}});
  }
  if (error == EACCES) {
    return MakeError(absl::StatusCode::kPermissionDenied, Reason::kNotPermitted,
                     absl::StrCat("may not listen on ", text), {{"address", text}});
  }
  return InvalidField("address", text,
                      absl::StrCat("an address of this host (", std::strerror(error), ")"));
}

bool IsGoodHost(absl::string_view host, bool bracketed) {
  constexpr size_t kMaxNameBytes = 253;
  if (host.empty() || host.size() > kMaxNameBytes) return false;
  in6_addr v6{};
  const std::string text(host.substr(0, host.find('%')));
  if (bracketed) return inet_pton(AF_INET6, text.c_str(), &v6) == 1;
  return std::ranges::all_of(host, [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const auto bad = [text] {
    return InvalidField("address", absl::StrCat("\"", text, "\""), kForm);
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return bad();
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  HostPort result;
  const bool digits =
      !port.empty() && port.size() <= 5 &&
      std::ranges::all_of(port, [](unsigned char c) { return absl::ascii_isdigit(c); });
  if (!digits || !absl::SimpleAtoi(port, &result.port) || result.port > 65535) return bad();
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() && bracketed) return bad();
  if (host.empty() || host == "*") {
    result.host = "::";
    return result;
  }
  if (!IsGoodHost(host, bracketed)) return bad();
  result.host = std::string(host);
  return result;
}

std::string ToString(const HostPort& host_port) {
  const bool brackets = absl::StrContains(host_port.host, ':');
  return brackets ? absl::StrCat("[", host_port.host, "]:", host_port.port)
                  : absl::StrCat(host_port.host, ":", host_port.port);
}

bool IsWildcard(absl::string_view host) {
  const std::string text(host);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return v4.s_addr == INADDR_ANY;
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  const bool mapped_any = IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 0 && v6.s6_addr[13] == 0 &&
                          v6.s6_addr[14] == 0 && v6.s6_addr[15] == 0;
  return IN6_IS_ADDR_UNSPECIFIED(&v6) || mapped_any;
}

bool IsLoopback(absl::string_view host) {
  const auto addresses = Resolve({std::string(host), 0});
  return addresses.ok() && !addresses->empty() &&
         std::ranges::all_of(*addresses, IsLoopbackAddress);
}

absl::StatusOr<std::string> NumericHost(absl::string_view host) {
  PAGEFERRY_ASSIGN_OR_RETURN(const std::vector<Address> addresses, Resolve({std::string(host), 0}));
  char text[NI_MAXHOST] = {};
  if (addresses.empty() ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&addresses[0].storage), addresses[0].length,
                  text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return InvalidField("address", host, "a host that resolves");
  }
  return std::string(text);
}

absl::StatusOr<int> ListenOn(const HostPort& host_port) {
  PAGEFERRY_ASSIGN_OR_RETURN(const std::vector<Address> addresses, Resolve(host_port));
  if (addresses.empty()) return InvalidField("address", ToString(host_port), "a host");
  auto listening = Listen(addresses.front(), host_port);
  const bool no_ipv6 = !listening.ok() && ReasonOf(listening.status()) == Reason::kInvalidField;
  if (no_ipv6 && host_port.host == "::") return ListenOn({"0.0.0.0", host_port.port});
  return listening;
}

absl::Status ProbeBind(const HostPort& host_port) {
  PAGEFERRY_ASSIGN_OR_RETURN(const std::vector<Address> addresses, Resolve(host_port));
  for (const Address& address : addresses) {
    if (address.storage.ss_family == AF_INET6 && host_port.host == "::" && !HasIpv6()) continue;
    PAGEFERRY_ASSIGN_OR_RETURN(const int fd, Listen(address, host_port));
    close(fd);
  }
  return absl::OkStatus();
}

std::ostream& operator<<(std::ostream& out, const HostPort& host_port) {
  return out << ToString(host_port);
}

}  // namespace pageferry
