#include "libs/common/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/common/error.h"
#include "libs/common/metrics.h"
#include "tests/testing/status_matchers.h"

namespace pageferry {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// Sends `request` to a loopback port and returns all that comes back.
std::string Exchange(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string reply;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    ssize_t received = 0;
    while ((received = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
      reply.append(buffer, static_cast<size_t>(received));
    }
  }
  close(fd);
  return reply;
}

std::string Request(int port, const std::string& method, const std::string& path) {
  return Exchange(port, absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
}

class MetricsServerTest : public testing::Test {
 protected:
  MetricsServerTest() {
    registry_.AddGauge("pageferry_depth", "Depth.").Set(3);
    auto server = MetricsServer::Start(
        {.registry = &registry_,
         .ready = [this] { return ready_; },
         .pages = {
             {"/status", [] { return PageReply{.content_type = "text/html", .body = "<p>"}; }},
             {"/throws", []() -> PageReply { throw std::runtime_error("broken"); }}}});
    EXPECT_THAT(server, IsOk());
    server_.emplace(*std::move(server));
  }

  MetricRegistry registry_;
  absl::Status ready_;
  std::optional<MetricsServer> server_;
};

TEST_F(MetricsServerTest, ServesMetrics) {
  const std::string reply = Request(server_->port(), "GET", "/metrics");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(reply, HasSubstr("\npageferry_depth 3\n"));
}

TEST_F(MetricsServerTest, HealthAndReadinessComeFromState) {
  EXPECT_THAT(Request(server_->port(), "GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Request(server_->port(), "GET", "/readyz"), StartsWith("HTTP/1.1 200 "));
  ready_ = absl::UnavailableError("not registered yet");
  const std::string reply = Request(server_->port(), "GET", "/readyz");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(reply, EndsWith("not registered yet\n"));
  EXPECT_THAT(Request(server_->port(), "GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, OnlyKnownPathsAndReadingMethods) {
  const int port = server_->port();
  EXPECT_THAT(Request(port, "GET", "/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Request(port, "GET", "/etc/passwd"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Request(port, "GET", "/../../../../etc/passwd"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Request(port, "GET", "/metrics/more"), StartsWith("HTTP/1.1 404 "));
  for (const char* const method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    EXPECT_THAT(Request(port, method, "/metrics"), StartsWith("HTTP/1.1 405 ")) << method;
  }
  const std::string head = Request(port, "HEAD", "/metrics");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
  EXPECT_THAT(Exchange(port, "garbage\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(
      Exchange(port, absl::StrCat("GET /healthz HTTP/1.0\r\n\r\n", std::string(50'000, 'x'))),
      StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, SlowAndHostileClientsHoldUpNobody) {
  std::vector<int> idle;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 40; ++i) {
    idle.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(idle.back(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    ASSERT_EQ(send(idle.back(), "GET /", 5, MSG_NOSIGNAL), 5);
  }
  EXPECT_THAT(Exchange(server_->port(), std::string(20'000, 'x')), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Request(server_->port(), "GET", "/metrics"), StartsWith("HTTP/1.1 200 "));
  for (const int fd : idle) close(fd);
}

TEST_F(MetricsServerTest, ServesPagesAndSurvivesOneThatThrows) {
  EXPECT_THAT(Request(server_->port(), "GET", "/status"), EndsWith("<p>"));
  EXPECT_THAT(Request(server_->port(), "GET", "/throws"), StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(Request(server_->port(), "GET", "/status?x=1"), EndsWith("<p>"));
}

TEST_F(MetricsServerTest, ManyScrapesAtOnce) {
  std::vector<std::thread> scrapers;
  scrapers.reserve(8);
  for (int i = 0; i < 8; ++i) {
    scrapers.emplace_back([this] {
      for (int j = 0; j < 5; ++j) {
        EXPECT_THAT(Request(server_->port(), "GET", "/metrics"), HasSubstr("pageferry_depth 3"));
      }
    });
  }
  for (std::thread& scraper : scrapers) scraper.join();
}

TEST_F(MetricsServerTest, TakenPortIsAnErrorWithItsAddress) {
  const std::string address = absl::StrCat("127.0.0.1:", server_->port());
  const auto second = MetricsServer::Start({.address = address, .registry = &registry_});
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kUnavailable, Reason::kInUse));
  EXPECT_EQ(MetadataOf(second.status()).at("address"), address);
  server_.reset();
  EXPECT_THAT(MetricsServer::Start({.address = address, .registry = &registry_}), IsOk());
}

TEST_F(MetricsServerTest, BadAddresses) {
  for (const char* const address : {"", "127.0.0.1", "127.0.0.1:99999", "192.0.2.1:0"}) {
    EXPECT_THAT(MetricsServer::Start({.address = address, .registry = &registry_}),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidField))
        << address;
  }
}

TEST_F(MetricsServerTest, ListensOnIpv6AndNames) {
  const auto six = MetricsServer::Start({.address = "[::1]:0", .registry = &registry_});
  EXPECT_THAT(six, IsOk());
  const auto named = MetricsServer::Start({.address = "localhost:0", .registry = &registry_});
  EXPECT_THAT(named, IsOk());
}

}  // namespace
}  // namespace pageferry
