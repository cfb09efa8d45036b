#include "libs/common/metrics_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/clock.h"
#include "libs/common/host_port.h"
#include "libs/common/ids.h"
#include "libs/common/metrics.h"
#include "libs/common/status.h"

namespace pageferry {
namespace {

constexpr size_t kMaxConnections = 64;
constexpr size_t kMaxRequestBytes = 8192;
constexpr absl::Duration kMaxConnectionTime = absl::Seconds(5);

PageReply FromStatus(const std::function<absl::Status()>& check) {
  const absl::Status status = check == nullptr ? absl::OkStatus() : check();
  if (status.ok()) return {.body = "ok\n"};
  return {.code = 503, .body = absl::StrCat(status.message(), "\n")};
}

const char* CodeText(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return code < 500 ? "Error" : "Internal Server Error";
  }
}

std::string Format(const PageReply& reply, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", reply.code, " ", CodeText(reply.code),
                      "\r\nContent-Type: ", reply.content_type,
                      "\r\nContent-Length: ", reply.body.size(),
                      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
                      reply.code == 405 ? "Allow: GET, HEAD\r\n" : "", "Connection: close\r\n\r\n",
                      with_body ? reply.body : "");
}

struct Fd {
  explicit Fd(int given) : number(given) {}
  Fd(Fd&& other) noexcept : number(std::exchange(other.number, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(number, other.number);
    return *this;
  }
  ~Fd() {
    if (number >= 0) close(number);
  }
  int number;
};

// Reads a request, writes the reply, then waits for the client to close, so that no reset overtakes
// the reply.
struct Connection {
  enum class Phase : uint8_t { kReading, kWriting, kClosing };

  Fd fd;
  MonotonicTime deadline;
  Phase phase = Phase::kReading;
  std::string input;
  std::string output;
  size_t written = 0;
};

}  // namespace

struct MetricsServer::Impl {
  Impl(MetricsServerOptions given, int listen_fd)
      : options(std::move(given)), listener(listen_fd), wake(eventfd(0, EFD_CLOEXEC)) {
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    getsockname(listen_fd, reinterpret_cast<sockaddr*>(&bound), &length);
    port =
        ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                          : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
    thread = std::thread([this] { Loop(); });
  }

  ~Impl() {
    const uint64_t one = 1;
    while (write(wake.number, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread.join();
  }

  void Loop() {
    std::vector<Connection> connections;
    std::vector<pollfd> polled;
    while (true) {
      polled = {{wake.number, POLLIN, 0},
                {connections.size() < kMaxConnections ? listener.number : -1, POLLIN, 0}};
      MonotonicTime next = MonotonicTime::InfiniteFuture();
      for (const Connection& connection : connections) {
        const bool writing = connection.phase == Connection::Phase::kWriting;
        polled.push_back(
            {connection.fd.number, static_cast<int16_t>(writing ? POLLOUT : POLLIN), 0});
        next = std::min(next, connection.deadline);
      }
      const absl::Duration wait =
          std::clamp(next - RealClock::Get().Now(), absl::ZeroDuration(), absl::Minutes(1));
      const int64_t wait_ms = absl::ToInt64Milliseconds(wait) + 1;
      if (poll(polled.data(), polled.size(), static_cast<int>(wait_ms)) < 0 && errno != EINTR)
        return;
      if (polled[0].revents != 0) return;
      const MonotonicTime now = RealClock::Get().Now();
      for (size_t i = 0; i < connections.size(); ++i) {
        const bool alive =
            connections[i].deadline > now && (polled[i + 2].revents == 0 || Step(connections[i]));
        if (!alive) connections[i].deadline = MonotonicTime::InfinitePast();
      }
      std::erase_if(connections, [](const Connection& connection) {
        return connection.deadline == MonotonicTime::InfinitePast();
      });
      if (polled[1].revents != 0) Accept(now, connections);
    }
  }

  void Accept(MonotonicTime now, std::vector<Connection>& connections) const {
    const int fd = accept4(listener.number, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      connections.push_back({.fd = Fd(fd), .deadline = now + kMaxConnectionTime});
    } else if (errno == EMFILE || errno == ENFILE) {
      // The pending connection stays readable: take turns with closing instead of spinning.
      poll(nullptr, 0, 10);
    }
  }

  // False when the connection is over.
  bool Step(Connection& connection) const {
    switch (connection.phase) {
      case Connection::Phase::kReading:
        return Read(connection);
      case Connection::Phase::kWriting:
        return Write(connection);
      case Connection::Phase::kClosing: {
        char discarded[4096];
        return recv(connection.fd.number, discarded, sizeof(discarded), 0) > 0;
      }
    }
    return false;
  }

  bool Read(Connection& connection) const {
    char buffer[4096];
    const ssize_t received = recv(connection.fd.number, buffer, sizeof(buffer), 0);
    if (received <= 0) return received < 0 && (errno == EAGAIN || errno == EINTR);
    connection.input.append(buffer, static_cast<size_t>(received));
    const bool complete = absl::StrContains(connection.input, "\r\n\r\n");
    if (!complete && connection.input.size() < kMaxRequestBytes) return true;
    connection.output = complete ? Answer(connection.input)
                                 : Format({.code = 400, .body = "request too long\n"}, true);
    connection.phase = Connection::Phase::kWriting;
    return Write(connection);
  }

  static bool Write(Connection& connection) {
    const ssize_t sent = send(connection.fd.number, connection.output.data() + connection.written,
                              connection.output.size() - connection.written, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    connection.written += static_cast<size_t>(sent);
    if (connection.written < connection.output.size()) return true;
    connection.phase = Connection::Phase::kClosing;
    return shutdown(connection.fd.number, SHUT_WR) == 0;
  }

  std::string Answer(absl::string_view request) const {
    const absl::string_view line = request.substr(0, request.find("\r\n"));
    const size_t first = line.find(' ');
    const size_t last = line.rfind(' ');
    if (first == absl::string_view::npos || first == last ||
        !absl::StartsWith(line.substr(last + 1), "HTTP/1.")) {
      return Format({.code = 400, .body = "not an HTTP/1.1 request\n"}, true);
    }
    const absl::string_view method = line.substr(0, first);
    absl::string_view path = line.substr(first + 1, last - first - 1);
    path = path.substr(0, path.find('?'));
    PageReply reply;
    try {
      reply = Route(path, method == "GET" || method == "HEAD");
    } catch (const std::exception& error) {
      reply = {.code = 500, .body = absl::StrCat(error.what(), "\n")};
    }
    return Format(reply, method != "HEAD");
  }

  PageReply Route(absl::string_view path, bool readable) const {
    PageReply refused = {.code = 405, .body = "only GET and HEAD\n"};
    if (path == "/metrics") {
      if (!readable) return refused;
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .body = options.registry->Serialize()};
    }
    if (path == "/healthz") return readable ? FromStatus(options.healthy) : refused;
    if (path == "/readyz") return readable ? FromStatus(options.ready) : refused;
    for (const MetricsPage& page : options.pages) {
      if (page.path == path) return readable ? page.render() : refused;
    }
    return {.code = 404, .body = "no such page\n"};
  }

  const MetricsServerOptions options;
  Fd listener;
  Fd wake;
  int port = 0;
  std::thread thread;
};

absl::StatusOr<MetricsServer> MetricsServer::Start(MetricsServerOptions options) {
  PAGEFERRY_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.address));
  PAGEFERRY_ASSIGN_OR_RETURN(const int fd, ListenOn(address), Annotate(_, "metrics server"));
  return MetricsServer(std::make_unique<Impl>(std::move(options), fd));
}

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsServer::MetricsServer(MetricsServer&&) noexcept = default;
MetricsServer& MetricsServer::operator=(MetricsServer&&) noexcept = default;
MetricsServer::~MetricsServer() = default;

int MetricsServer::port() const { return impl_->port; }

}  // namespace pageferry
