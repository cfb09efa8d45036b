#include "libs/common/metrics_server.h"

#include <civetweb.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/error.h"
#include "libs/common/host_port.h"
#include "libs/common/log.h"
#include "libs/common/metrics.h"
#include "libs/common/status.h"

namespace pageferry {
namespace {

LogArea metrics_server_log("metrics_server");

PageReply FromStatus(const std::function<absl::Status()>& check) {
  const absl::Status status = check == nullptr ? absl::OkStatus() : check();
  if (status.ok()) return {.body = "ok\n"};
  return {.code = 503, .body = absl::StrCat(status.message(), "\n")};
}

const char* CodeText(int code) {
  switch (code) {
    case 200:
      return "OK";
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

void Write(mg_connection* connection, const PageReply& reply, bool with_body) {
  const std::string head = absl::StrCat(
      "HTTP/1.1 ", reply.code, " ", CodeText(reply.code), "\r\nContent-Type: ", reply.content_type,
      "\r\nContent-Length: ", reply.body.size(),
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
      reply.code == 405 ? "Allow: GET, HEAD\r\n" : "", "Connection: close\r\n\r\n");
  const std::string message = with_body ? head + reply.body : head;
  mg_write(connection, message.data(), message.size());
}

}  // namespace

struct MetricsServer::Impl {
  explicit Impl(MetricsServerOptions given) : options(std::move(given)) {}
  ~Impl() {
    if (context != nullptr) mg_stop(context);
  }

  PageReply Reply(absl::string_view path, absl::string_view method) const {
    const bool readable = method == "GET" || method == "HEAD";
    const PageReply refused = {.code = 405, .body = "only GET and HEAD\n"};
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

  static int OnRequest(mg_connection* connection) {
    const mg_request_info& request = *mg_get_request_info(connection);
    const absl::string_view method = request.request_method;
    PageReply reply;
    try {
      reply = static_cast<const Impl*>(request.user_data)
                  ->Reply(request.local_uri == nullptr ? "" : request.local_uri, method);
    } catch (const std::exception& error) {
      reply = {.code = 500, .body = absl::StrCat(error.what(), "\n")};
    }
    Write(connection, reply, method != "HEAD");
    return reply.code;
  }

  static int OnLog(const mg_connection* /*connection*/, const char* message) {
    Log(LogLevel::kVerbose, metrics_server_log, "http_server", {{"message", message}});
    return 1;
  }

  const MetricsServerOptions options;
  mg_context* context = nullptr;
  int port = 0;
};

absl::StatusOr<MetricsServer> MetricsServer::Start(MetricsServerOptions options) {
  PAGEFERRY_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(options.address));
  PAGEFERRY_ASSIGN_OR_RETURN(address.host, NumericHost(address.host));
  // Asked first: civetweb only logs why it failed.
  PAGEFERRY_RETURN_IF_ERROR(ProbeBind(address), Annotate(_, "metrics server"));

  static const unsigned initialized = mg_init_library(0);
  (void)initialized;
  auto impl = std::make_unique<Impl>(std::move(options));
  const std::string listening = ToString(address);
  const char* settings[] = {"listening_ports",
                            listening.c_str(),
                            "num_threads",
                            "4",
                            "request_timeout_ms",
                            "5000",
                            "enable_keep_alive",
                            "no",
                            nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = &Impl::OnRequest;
  callbacks.log_message = &Impl::OnLog;
  impl->context = mg_start(&callbacks, impl.get(), settings);
  mg_server_port bound{};
  if (impl->context == nullptr || mg_get_server_ports(impl->context, 1, &bound) != 1) {
    return MakeError(absl::StatusCode::kUnavailable, Reason::kInUse,
                     absl::StrCat("metrics server cannot listen on ", listening),
                     {{"address", listening}});
  }
  impl->port = bound.port;
  return MetricsServer(std::move(impl));
}

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsServer::MetricsServer(MetricsServer&&) noexcept = default;
MetricsServer& MetricsServer::operator=(MetricsServer&&) noexcept = default;
MetricsServer::~MetricsServer() = default;

int MetricsServer::port() const { return impl_->port; }

}  // namespace pageferry
