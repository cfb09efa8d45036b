#include "services/bootstrap/bootstrap_server.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/error.h"
#include "libs/common/grpc_runtime.h"
#include "libs/common/host_port.h"
#include "libs/common/log.h"
#include "libs/common/metrics.h"
#include "libs/common/metrics_server.h"
#include "libs/common/status.h"
#include "libs/common/tls.h"
#include "libs/common/topology.h"
#include "services/bootstrap/bootstrap_probe.h"
#include "services/bootstrap/edge.h"
#include "services/bootstrap/memory_store.h"
#include "services/bootstrap/watch_hub.h"

namespace pageferry::bootstrap {
namespace {

LogArea bootstrap_log("bootstrap");

constexpr char kServiceName[] = "pageferry.bootstrap.v1.Bootstrap";
constexpr int kHealthOffset = 1;
constexpr int kMetricsOffset = 2;

/// "auto" and "none" replaced; empty is none.
absl::StatusOr<std::string> SideAddress(const std::string& wish, const HostPort& main, int offset) {
  if (wish == "none") return std::string();
  if (wish != "auto") return wish;
  if (main.port == 0) return ToString(HostPort{main.host, 0});
  constexpr int kMaxPort = 65'535;
  if (main.port + offset <= kMaxPort) return ToString(HostPort{main.host, main.port + offset});
  return InvalidField("listen", ToString(main), "a port with two more after it, or all given");
}

void LogUpdate(const TableUpdate& update) {
  for (const TableUpdate::Change& change : update.changes) {
    if (!change.engine_level) continue;
    if (change.view == nullptr) {
      Log(LogLevel::kInfo, bootstrap_log, "engine_forgotten",
          {{"namespace", change.key.name_space}, {"engine", change.key.engine}});
      continue;
    }
    Log(LogLevel::kInfo, bootstrap_log, change.view->ready ? "engine_ready" : "engine_not_ready",
        {{"namespace", change.key.name_space},
         {"engine", change.key.engine},
         {"shape", ToString(change.view->traits.shape)},
         {"live", change.view->live_count},
         {"missing", change.view->missing_count}});
  }
}

}  // namespace

struct BootstrapServer::Impl {
  ~Impl() { Stop(); }

  void Stop() {
    if (server && !stopped) {
      stopped = true;
      Log(LogLevel::kInfo, bootstrap_log, "draining");
      server->health().SetAllNotServing();
      store->Drain();
      edge->StopStreams();
      server->Shutdown(RealClock::Get().Now() + options.drain_timeout);
      Log(LogLevel::kInfo, bootstrap_log, "stopped");
    }
    if (store != nullptr) {
      const absl::MutexLock lock(&metrics_mutex);
      last_metrics = registry.Serialize();
    }
    // Who calls goes before who is called: the store tells the hub.
    metrics_server.reset();
    server.reset();
    edge.reset();
    store.reset();
    hub.reset();
  }

  ServerOptions options;
  std::string address;
  int port = 0;
  int health_port = 0;
  int metrics_port = 0;
  bool stopped = false;
  absl::Mutex metrics_mutex;
  // Set once what the gauges ask is about to go.
  std::optional<std::string> last_metrics ABSL_GUARDED_BY(metrics_mutex);
  MetricRegistry registry;
  BootstrapProbe probe{registry};
  std::unique_ptr<RealScheduler> lease_timers;
  std::unique_ptr<RealScheduler> fan_out;
  std::unique_ptr<WatchHub> hub;
  std::unique_ptr<MemoryStore> store;
  std::unique_ptr<BootstrapEdge> edge;
  std::optional<GrpcServer> server;
  std::optional<MetricsServer> metrics_server;
};

BootstrapServer::BootstrapServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BootstrapServer::BootstrapServer(BootstrapServer&&) noexcept = default;
BootstrapServer& BootstrapServer::operator=(BootstrapServer&&) noexcept = default;
BootstrapServer::~BootstrapServer() = default;

const std::string& BootstrapServer::address() const { return impl_->address; }
int BootstrapServer::port() const { return impl_->port; }
int BootstrapServer::health_port() const { return impl_->health_port; }
int BootstrapServer::metrics_port() const { return impl_->metrics_port; }
std::string BootstrapServer::Metrics() const {
  const absl::MutexLock lock(&impl_->metrics_mutex);
  return impl_->last_metrics.has_value() ? *impl_->last_metrics : impl_->registry.Serialize();
}
void BootstrapServer::Stop() { impl_->Stop(); }

absl::StatusOr<BootstrapServer> BootstrapServer::Start(const ServerOptions& options) {
  PAGEFERRY_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
  PAGEFERRY_ASSIGN_OR_RETURN(const std::string health,
                             SideAddress(options.health_listen, listen, kHealthOffset));
  PAGEFERRY_ASSIGN_OR_RETURN(const std::string metrics,
                             SideAddress(options.metrics_listen, listen, kMetricsOffset));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  const Clock& clock = options.clock != nullptr ? *options.clock : RealClock::Get();
  if (options.scheduler == nullptr) {
    impl->lease_timers = std::make_unique<RealScheduler>(clock);
    impl->fan_out = std::make_unique<RealScheduler>(clock);
  }
  Scheduler& lease_timers = options.scheduler != nullptr ? *options.scheduler : *impl->lease_timers;
  Scheduler& fan_out = options.scheduler != nullptr ? *options.scheduler : *impl->fan_out;

  impl->store = std::make_unique<MemoryStore>(
      MemoryStore::Options{.table = {.engine_memory = options.engine_memory,
                                     .max_engines = static_cast<size_t>(options.max_engines),
                                     .max_cells = static_cast<size_t>(options.max_ranks)},
                           .max_rooms = static_cast<size_t>(options.max_rooms),
                           .max_waiting = static_cast<size_t>(options.max_waiting),
                           .warm_up = 2 * options.default_lease_ttl},
      clock, lease_timers, impl->probe);
  MemoryStore& store = *impl->store;
  constexpr int64_t kEnvelope = 1024;  // beside what a message is measured by
  impl->hub = std::make_unique<WatchHub>(
      WatchHub::Options{
          .max_watchers = static_cast<size_t>(options.max_watchers),
          .max_message_bytes = static_cast<size_t>(options.max_message.value() - kEnvelope)},
      store.stats().version, [&store] { return store.warming_up(); }, clock, fan_out);
  store.SetListener([hub = impl->hub.get()](const TableUpdate& update) {
    LogUpdate(update);
    hub->OnUpdate(update);
  });
  impl->probe.ReadFrom([&store] { return store.stats(); },
                       [hub = impl->hub.get()] { return hub->watcher_count(); });
  impl->registry.AddProcessMetrics();

  const bool loopback = options.allow_loopback_endpoints == "auto"
                            ? IsLoopback(listen.host)
                            : options.allow_loopback_endpoints == "true";
  impl->edge = std::make_unique<BootstrapEdge>(
      EdgeContext{.limits = {.default_ttl = options.default_lease_ttl,
                             .min_ttl = options.min_lease_ttl,
                             .max_ttl = options.max_lease_ttl,
                             .allow_loopback_endpoints = loopback},
                  .watch_stall_timeout = options.watch_stall_timeout,
                  .store = store,
                  .hub = *impl->hub,
                  .probe = impl->probe,
                  .clock = clock});
  PAGEFERRY_ASSIGN_OR_RETURN(std::shared_ptr<const Tls> tls, Tls::Load(options.tls));
  const bool clear = tls == nullptr;
  PAGEFERRY_ASSIGN_OR_RETURN(
      impl->server,
      GrpcServer::Start({.addresses = {options.listen},
                         .services = {impl->edge->service()},
                         .health_address = health,
                         .health_names = {kServiceName},
                         .max_message_bytes = options.max_message,
                         .reflection = options.reflection,
                         .credentials = {.tls = std::move(tls), .insecure = options.insecure}}));
  impl->address = impl->server->addresses().front();
  impl->port = impl->server->port();
  impl->health_port = impl->server->health_port();
  HealthRegistry& registry = impl->server->health();
  if (!metrics.empty()) {
    PAGEFERRY_ASSIGN_OR_RETURN(
        impl->metrics_server,
        MetricsServer::Start({.address = metrics,
                              .registry = &impl->registry,
                              .ready = [&registry]() -> absl::Status {
                                if (registry.Get(kServiceName).value_or(false)) {
                                  return absl::OkStatus();
                                }
                                return absl::UnavailableError("draining");
                              }}));
    impl->metrics_port = impl->metrics_server->port();
  }
  registry.Set(kServiceName, true);
  if (options.insecure && clear && !IsLoopback(listen.host)) {
    Log(LogLevel::kWarning, bootstrap_log, "insecure", {{"address", impl->address}});
  }
  Log(LogLevel::kInfo, bootstrap_log, "listening",
      {{"address", impl->address},
       {"health_port", impl->health_port},
       {"metrics_port", impl->metrics_port}});
  return BootstrapServer(std::move(impl));
}

}  // namespace pageferry::bootstrap
