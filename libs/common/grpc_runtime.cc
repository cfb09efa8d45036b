#include "libs/common/grpc_runtime.h"

#include <grpc/support/time.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "libs/common/error.h"
#include "libs/common/grpc_health.h"
#include "libs/common/host_port.h"
#include "libs/common/status.h"
#include "libs/common/tls.h"
#include "libs/common/unix_socket.h"

namespace pageferry {
namespace {

// Room for our error details (4 KiB) in base64 beside their message.
constexpr int kMaxMetadataBytes = 16 * 1024;

// Reflection is the one synchronous service: each of its streams holds a thread.
constexpr int kMaxSyncThreads = 64;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, std::numeric_limits<int>::max()));
}

// Linking the reflection library adds its plugin to every server of the process, or, where the
// linker found it unused, to none: this decides for one server.
class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(bool on) : on_(on) {}
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    auto ours = std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>();
    std::erase_if(*plugins, [&ours](const auto& plugin) { return plugin->name() == ours->name(); });
    if (on_) plugins->push_back(std::move(ours));
  }

 private:
  const bool on_;
};

// One address to listen on; the port is written by gRPC when the server starts.
struct Listener {
  std::optional<HostPort> host_port;  // nothing: a unix socket
  std::optional<UnixSocketGuard> socket;
  int bound_port = 0;

  std::string Address() const {
    if (socket.has_value()) return absl::StrCat("unix:", socket->path());
    return ToString(HostPort{host_port->host, bound_port != 0 ? bound_port : host_port->port});
  }
};

absl::StatusOr<Listener> ParseListener(const std::string& address, bool any_host) {
  Listener listener;
  absl::string_view path = address;
  if (absl::ConsumePrefix(&path, "unix:")) {
    (void)absl::ConsumePrefix(&path, "//");
    PAGEFERRY_ASSIGN_OR_RETURN(listener.socket, UnixSocketGuard::Acquire(path));
    return listener;
  }
  PAGEFERRY_ASSIGN_OR_RETURN(listener.host_port, ParseHostPort(address));
  PAGEFERRY_RETURN_IF_ERROR(NumericHost(listener.host_port->host).status());
  if (!any_host && !IsLoopback(listener.host_port->host)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kPolicy,
                     absl::StrCat("address ", address,
                                  " can be reached by other hosts and there is no TLS: give "
                                  "--tls-cert, --tls-key and --tls-ca, listen on loopback or a "
                                  "unix socket, or give --insecure"),
                     {{"address", address}, {"required", "tls"}, {"offered", "insecure"}});
  }
  return listener;
}

void SetCommonOptions(const GrpcServerOptions& options, grpc::ServerBuilder& builder) {
  const int message_bytes = static_cast<int>(options.max_message_bytes.value());
  builder.SetMaxReceiveMessageSize(message_bytes);
  builder.SetMaxSendMessageSize(message_bytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  grpc::ResourceQuota quota("pageferry");
  quota.SetMaxThreads(kMaxSyncThreads);
  builder.SetResourceQuota(quota);
  const Keepalive& keepalive = options.keepalive;
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(keepalive.interval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(keepalive.timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(keepalive.min_accepted));
}

// Starts `builder` on all `listeners`, or says which one failed and why; gRPC itself only logs it.
absl::StatusOr<std::unique_ptr<grpc::Server>> StartOn(std::vector<Listener>& listeners,
                                                      const Tls* tls,
                                                      grpc::ServerBuilder& builder) {
  for (Listener& listener : listeners) {
    builder.AddListeningPort(listener.Address(),
                             tls != nullptr && listener.host_port.has_value()
                                 ? tls->server()
                                 : grpc::InsecureServerCredentials(),
                             &listener.bound_port);
  }
  std::unique_ptr<grpc::Server> server;
  {
    ScopedSocketUmask umask;
    server = builder.BuildAndStart();
  }
  if (server != nullptr) {
    for (const Listener& listener : listeners) {
      if (listener.socket.has_value()) {
        PAGEFERRY_RETURN_IF_ERROR(listener.socket->RestrictMode());
      }
    }
    return server;
  }
  std::string addresses;
  for (Listener& listener : listeners) {
    listener.bound_port = 0;
    if (listener.host_port.has_value()) PAGEFERRY_RETURN_IF_ERROR(ProbeBind(*listener.host_port));
    absl::StrAppend(&addresses, addresses.empty() ? "" : " ", listener.Address());
  }
  return MakeError(absl::StatusCode::kUnavailable, Reason::kInUse,
                   absl::StrCat("cannot listen on ", addresses), {{"address", addresses}});
}

gpr_timespec ToTimespec(MonotonicTime time) {
  if (time == MonotonicTime::InfiniteFuture()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;
  const int64_t nanoseconds = std::max<int64_t>(time.nanoseconds(), 0);
  return {nanoseconds / kNanosecondsPerSecond,
          static_cast<int32_t>(nanoseconds % kNanosecondsPerSecond), GPR_CLOCK_MONOTONIC};
}

}  // namespace

// Destroyed from the last member to the first: servers before what they serve and before the locks
// of their sockets.
struct GrpcServer::Impl {
  HealthRegistry health;
  std::unique_ptr<grpc::Service> health_service;
  std::unique_ptr<grpc::Service> probe_health_service;
  std::vector<Listener> listeners;
  std::vector<Listener> health_listeners;
  std::vector<std::string> addresses;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<grpc::Server> health_server;
};

absl::StatusOr<GrpcServer> GrpcServer::Start(GrpcServerOptions options) {
  if (options.addresses.empty()) return InvalidField("addresses", "none", "one or more");
  constexpr int64_t kMinMessageBytes = 1024;
  constexpr int64_t kMaxMessageBytes = 1 << 30;
  if (options.max_message_bytes.value() < kMinMessageBytes ||
      options.max_message_bytes.value() > kMaxMessageBytes) {
    return InvalidField("max_message_bytes", absl::StrCat(options.max_message_bytes.value()),
                        absl::StrCat(kMinMessageBytes, " to ", kMaxMessageBytes));
  }
  GrpcServer started(std::make_unique<Impl>());  // stops what has started when the rest fails
  Impl& impl = *started.impl_;
  impl.health.Set("", true);
  for (const std::string& name : options.health_names) impl.health.Set(name, false);
  impl.health_service = MakeHealthService(impl.health);
  for (const std::string& address : options.addresses) {
    PAGEFERRY_ASSIGN_OR_RETURN(
        Listener listener,
        ParseListener(address, options.credentials.insecure || options.credentials.tls != nullptr));
    impl.listeners.push_back(std::move(listener));
  }
  grpc::ServerBuilder builder;
  SetCommonOptions(options, builder);
  builder.SetOption(std::make_unique<ReflectionOption>(options.reflection));
  for (grpc::Service* const service : options.services) builder.RegisterService(service);
  builder.RegisterService(impl.health_service.get());
  PAGEFERRY_ASSIGN_OR_RETURN(impl.server,
                             StartOn(impl.listeners, options.credentials.tls.get(), builder));
  for (const Listener& listener : impl.listeners) impl.addresses.push_back(listener.Address());
  if (options.health_address.empty()) return started;

  impl.probe_health_service = MakeHealthService(impl.health);
  grpc::ServerBuilder health_builder;
  SetCommonOptions(options, health_builder);
  health_builder.SetOption(std::make_unique<ReflectionOption>(false));
  health_builder.RegisterService(impl.probe_health_service.get());
  PAGEFERRY_ASSIGN_OR_RETURN(Listener listener, ParseListener(options.health_address, true));
  impl.health_listeners.push_back(std::move(listener));
  PAGEFERRY_ASSIGN_OR_RETURN(impl.health_server,
                             StartOn(impl.health_listeners, nullptr, health_builder),
                             Annotate(_, "health"));
  return started;
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::GrpcServer(GrpcServer&&) noexcept = default;
GrpcServer& GrpcServer::operator=(GrpcServer&& other) noexcept {
  if (this != &other) {
    if (impl_ != nullptr) Shutdown(MonotonicTime());
    impl_ = std::move(other.impl_);
  }
  return *this;
}

GrpcServer::~GrpcServer() {
  if (impl_ != nullptr) Shutdown(MonotonicTime());
}

const std::vector<std::string>& GrpcServer::addresses() const { return impl_->addresses; }

int GrpcServer::port() const {
  for (const Listener& listener : impl_->listeners) {
    if (listener.host_port.has_value()) return listener.bound_port;
  }
  return 0;
}

int GrpcServer::health_port() const {
  return impl_->health_listeners.empty() ? 0 : impl_->health_listeners.front().bound_port;
}

HealthRegistry& GrpcServer::health() { return impl_->health; }

void GrpcServer::Shutdown(MonotonicTime deadline) {
  impl_->health.End();
  if (impl_->server != nullptr) impl_->server->Shutdown(ToTimespec(deadline));
  if (impl_->health_server != nullptr) impl_->health_server->Shutdown(ToTimespec(deadline));
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  const int message_bytes = static_cast<int>(
      std::clamp<int64_t>(options.max_message_bytes.value(), 1, std::numeric_limits<int>::max()));
  arguments.SetMaxReceiveMessageSize(message_bytes);
  arguments.SetMaxSendMessageSize(message_bytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive.interval));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.keepalive.timeout));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Milliseconds(options.initial_backoff));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds(options.max_backoff));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(options.connect_timeout));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const bool clear = options.credentials.tls == nullptr || absl::StartsWith(target, "unix:");
  return grpc::CreateCustomChannel(
      target, clear ? grpc::InsecureChannelCredentials() : options.credentials.tls->channel(),
      arguments);
}

}  // namespace pageferry
