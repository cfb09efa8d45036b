#include "services/transfer-agent/agent.h"

#include <grpcpp/impl/service_type.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "libs/common/clock.h"
#include "libs/common/error.h"
#include "libs/common/grpc_runtime.h"
#include "libs/common/host_port.h"
#include "libs/common/library_versions.h"
#include "libs/common/metrics.h"
#include "libs/common/metrics_server.h"
#include "libs/common/release_later.h"
#include "libs/common/status.h"
#include "libs/common/tls.h"
#include "libs/transport/local_transport.h"
#include "libs/transport/orphan_pools.h"
#include "libs/transport/ucx_transport.h"
#include "services/transfer-agent/agent_listen.h"
#include "services/transfer-agent/agent_loop.h"
#include "services/transfer-agent/agent_probe.h"
#include "services/transfer-agent/drainer.h"
#include "services/transfer-agent/engine_host.h"
#include "services/transfer-agent/engine_service.h"
#include "services/transfer-agent/grpc_bootstrap_client.h"
#include "services/transfer-agent/peer_acceptor.h"
#include "services/transfer-agent/peer_client.h"
#include "services/transfer-agent/peer_service.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {
namespace {

LogArea log_area("agent");

constexpr char kEngineService[] = "pageferry.agent.v1.TransferAgent";
constexpr char kPeerService[] = "pageferry.peer.v1.PeerTransfer";
constexpr absl::Duration kServerGrace = absl::Seconds(3);

using Transports = std::map<transport::TransportKind, transport::Transport*>;

std::vector<transport::Transport*> ListOf(const Transports& transports) {
  std::vector<transport::Transport*> list;
  list.reserve(transports.size());
  for (const auto& [kind, transport] : transports) list.push_back(transport);
  return list;
}

}  // namespace

/// What has to be there before the rest can be made.
struct Agent::Base {
  AgentOptions options;
  TransportPolicy policy;
  MetricRegistry registry;
  AgentProbe probe{registry};
  std::shared_ptr<const Tls> tls;
  std::unique_ptr<transport::UcxTransport> tcp;
};

struct Agent::Impl {
  explicit Impl(std::unique_ptr<Base> made);
  ~Impl() { Stop(absl::ZeroDuration()); }

  absl::Status Start();
  void Stop(absl::Duration drain_timeout);
  void OnChange();
  void UpdateGauges();
  void ReapOrphans();
  /// Runs `task` on the loop and waits for it. Not on the loop.
  void Do(absl::AnyInvocable<void()> task);

  Transports AllTransports();

  const std::unique_ptr<Base> base;
  const AgentOptions& options = base->options;
  const AgentId id;
  RealClock& clock = RealClock::Get();
  MetricRegistry& registry = base->registry;
  AgentProbe& probe = base->probe;
  ThreadCoreLoop core_loop{clock};
  RealScheduler scheduler{clock};  // goes before the loop that its tasks post to
  AgentLoop loop{core_loop, clock, scheduler};
  transport::LocalTransport local;
  // Reset in Stop, before what their tasks use goes.
  std::unique_ptr<Worker> pool_worker = std::make_unique<Worker>();
  std::unique_ptr<Worker> map_worker = std::make_unique<Worker>();
  OwnSide own;
  GrpcBootstrapClient bootstrap;
  GrpcPeerConnector connector;
  PoolStore pools;
  PeerDirectory directory;
  PeerDialler dialler;
  PeerAcceptor acceptor;
  EngineWatch watch;
  RankFinder finder;
  RoomPlacer placer;
  EngineHost host;
  Drainer drainer;
  AgentCore core;
  transport::OrphanReaper reaper;
  LoopTimer gauge_timer{loop};
  LoopTimer reap_timer{loop};
  std::unique_ptr<grpc::Service> engine_service;
  std::unique_ptr<grpc::Service> peer_service;
  std::optional<GrpcServer> peer_server;
  std::optional<GrpcServer> engine_server;
  std::optional<MetricsServer> metrics_server;
  std::vector<HealthRegistry*> health;  // of both servers; used on the loop
  std::vector<std::string> engine_addresses;
  std::string peer_address;
  int peer_port = 0;
  int health_port = 0;
  int metrics_port = 0;
  bool started = false;
  bool stopped = false;
};

Agent::Impl::Impl(std::unique_ptr<Base> made)
    : base(std::move(made)),
      id(options.agent_id.empty() ? DrawAgentId() : options.agent_id),
      local({.copy_threads = static_cast<int>(options.copy_threads), .shm_dir = options.shm_dir}),
      own{.agent = {.id = id, .epoch = Epoch(0)},
          .room_credit = static_cast<int32_t>(options.max_rooms_of_peer),
          .host_id = HostId(options.shm_dir),
          .policy = base->policy,
          .addresses = {}},
      bootstrap(loop, options.bootstrap,
                {.max_message_bytes = options.max_message,
                 .max_backoff = options.backoff.max,
                 .credentials = {.tls = base->tls}}),
      connector(loop, {.max_message_bytes = options.max_message,
                       .max_backoff = options.backoff.max,
                       .credentials = {.tls = base->tls}}),
      pools(loop, *pool_worker, ListOf(AllTransports()),
            {.agent = id,
             .shm_dir = options.shm_dir,
             .max_pools = static_cast<size_t>(options.max_pools),
             .prefault = options.prefault,
             .lock = options.lock_pools}),
      directory(loop, *map_worker, probe),
      dialler(loop, *map_worker, connector, directory, own, AllTransports(), options.peer,
              options.backoff),
      acceptor(loop, *map_worker, directory, own, AllTransports(), options.peer),
      watch(loop, bootstrap, options.backoff),
      finder(loop, own, watch, bootstrap, directory, dialler, options.resolve_timeout),
      placer(loop, bootstrap, options.backoff),
      host({.agent = id,
            .incarnation = {.start_time_unix_nanos = absl::ToUnixNanos(clock.WallNow()),
                            .nonce = RandomSeed()},
            .lease_ttl = options.lease_ttl,
            .pool_grace = options.pool_grace,
            .backoff = options.backoff},
           {.loop = loop,
            .own = own,
            .bootstrap = bootstrap,
            .pools = pools,
            .directory = directory,
            .dialler = dialler,
            .finder = finder,
            .watch = watch,
            .placer = placer,
            .probe = probe}),
      drainer(loop, host),
      core({.max_rooms = options.max_rooms, .max_rooms_of_peer = options.max_rooms_of_peer},
           {.engine = host,
            .peers = directory,
            .finder = finder,
            .seals = pools,
            .mover = directory,
            .probe = probe}),
      reaper(options.shm_dir, options.pool_grace) {
  if (base->tcp != nullptr) {
    own.addresses[transport::TransportKind::kTcp] = base->tcp->address();
  }
  probe.SetActivity([this] { OnChange(); });
  directory.Bind(core);
  finder.Bind(core);
  drainer.Bind(core);
  host.Bind(core, [this] { OnChange(); });
  watch.Bind([this](const EngineId& engine) { finder.OnEngineChanged(engine); });
  dialler.Bind([this](const AgentRef& agent, const absl::StatusOr<PeerId>& session, bool final) {
    finder.OnDialled(agent, session, final);
  });
}

Transports Agent::Impl::AllTransports() {
  Transports all = {{transport::TransportKind::kLocal, &local}};
  if (base->tcp != nullptr) all.emplace(transport::TransportKind::kTcp, base->tcp.get());
  return all;
}

absl::Status Agent::Impl::Start() {
  PAGEFERRY_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.peer_listen));
  PAGEFERRY_ASSIGN_OR_RETURN(const std::string health_address,
                             SideAddress(options.health_listen, listen, 1));
  PAGEFERRY_ASSIGN_OR_RETURN(const std::string metrics,
                             SideAddress(options.metrics_listen, listen, 2));
  core_loop.Start(core);
  started = true;

  peer_service = MakePeerService(loop, acceptor);
  PAGEFERRY_ASSIGN_OR_RETURN(
      peer_server,
      GrpcServer::Start({.addresses = {options.peer_listen},
                         .services = {peer_service.get()},
                         .health_address = health_address,
                         .health_names = {kEngineService, kPeerService},
                         .max_message_bytes = options.max_message,
                         .reflection = options.reflection,
                         .credentials = {.tls = base->tls, .insecure = options.insecure}}));
  peer_address = peer_server->addresses().front();
  peer_port = peer_server->port();
  health_port = peer_server->health_port();
  PAGEFERRY_ASSIGN_OR_RETURN(const HostPort endpoint, Advertised(options.advertise, peer_address));

  std::optional<HostPort> metrics_endpoint;
  registry.AddProcessMetrics();
  if (!metrics.empty()) {
    HealthRegistry& serving = peer_server->health();
    PAGEFERRY_ASSIGN_OR_RETURN(
        metrics_server,
        MetricsServer::Start(
            {.address = metrics, .registry = &registry, .ready = [&serving]() -> absl::Status {
               if (serving.Get(kEngineService).value_or(false)) {
                 return absl::OkStatus();
               }
               return absl::UnavailableError("draining");
             }}));
    metrics_port = metrics_server->port();
    metrics_endpoint = HostPort{endpoint.host, metrics_port};
  }
  host.SetEndpoints(endpoint, metrics_endpoint);

  engine_service = MakeEngineService({.loop = loop,
                                      .core = core,
                                      .host = host,
                                      .pools = pools,
                                      .directory = directory,
                                      .drainer = drainer,
                                      .own = own,
                                      .peer_endpoint = endpoint,
                                      .version = VersionText("pageferry-agent")});
  PAGEFERRY_ASSIGN_OR_RETURN(
      engine_server,
      GrpcServer::Start({.addresses = options.engine_listen,
                         .services = {engine_service.get()},
                         .health_names = {kEngineService, kPeerService},
                         .max_message_bytes = options.max_message,
                         .reflection = options.reflection,
                         .credentials = {.tls = base->tls, .insecure = options.insecure}}));
  engine_addresses = engine_server->addresses();
  Do([this] {
    health = {&engine_server->health(), &peer_server->health()};
    OnChange();
    ReapOrphans();
  });
  Log(LogLevel::kInfo, log_area, "listening",
      {{"agent", id},
       {"engine", engine_addresses.front()},
       {"peer", peer_address},
       {"advertised", ToString(endpoint)},
       {"health_port", health_port},
       {"metrics_port", metrics_port}});
  if (options.insecure && base->tls == nullptr && !IsLoopback(listen.host)) {
    Log(LogLevel::kWarning, log_area, "insecure", {{"address", peer_address}});
  }
  return absl::OkStatus();
}

void Agent::Impl::Do(absl::AnyInvocable<void()> task) {
  absl::Notification done;
  loop.Post([&] {
    task();
    done.Notify();
  });
  done.WaitForNotification();
}

void Agent::Impl::Stop(absl::Duration drain_timeout) {
  if (std::exchange(stopped, true)) return;
  if (started) {
    if (peer_server) peer_server->health().SetAllNotServing();
    if (engine_server) engine_server->health().SetAllNotServing();
    absl::Notification drained;
    loop.Post([&] {
      drainer.Start(drain_timeout, true, [&](Drainer::Result result) {
        Log(LogLevel::kInfo, log_area, "drained",
            {{"finished", result.finished}, {"aborted", result.aborted}});
        drained.Notify();
      });
    });
    drained.WaitForNotification();
    Do([this] {
      host.Shutdown();
      watch.Stop();
    });
    if (engine_server) engine_server->Shutdown(clock.Now() + kServerGrace);
    if (peer_server) peer_server->Shutdown(clock.Now() + kServerGrace);
    metrics_server.reset();
    static_cast<void>(connector.WaitUntilEnded(clock.Now() + kServerGrace));
    static_cast<void>(bootstrap.WaitUntilEnded(clock.Now() + kServerGrace));
    Do([this] {
      gauge_timer.Clear();
      reap_timer.Clear();
      pools.ReleaseAll();
    });
    core_loop.Stop();
  }
  engine_server.reset();
  peer_server.reset();
  map_worker.reset();
  pool_worker.reset();
  FlushReleases();
  if (started) Log(LogLevel::kInfo, log_area, "stopped", {{"agent", id}});
}

void Agent::Impl::OnChange() {
  const AgentState state = host.state();
  const bool serving = state != AgentState::kDraining && state != AgentState::kSuperseded;
  for (HealthRegistry* const of_server : health) {
    of_server->Set(kEngineService, serving);
    of_server->Set(kPeerService, serving);
  }
  if (gauge_timer.deadline() == MonotonicTime::InfiniteFuture()) {
    gauge_timer.Set(loop.Now() + absl::Milliseconds(100), [this] { UpdateGauges(); });
  }
}

void Agent::Impl::UpdateGauges() {
  probe.Rooms(core.RoomsByState());
  probe.Ledger(core.Ledger());
  probe.LeaseLive(host.lease().live());
  probe.EngineSession(host.session_open());
  probe.Pools(static_cast<int64_t>(pools.Views().size()), pools.total());
}

void Agent::Impl::ReapOrphans() {
  pool_worker->Post([this] {
    const auto removed = reaper.Run(clock.Now());
    if (!removed.ok()) {
      Log(LogLevel::kWarning, log_area, "reaping_failed", {{"why", removed.status()}});
    } else {
      for (const transport::OrphanPool& orphan : *removed) {
        Log(LogLevel::kInfo, log_area, "orphan_removed",
            {{"file", orphan.file_name}, {"bytes", orphan.size}});
      }
    }
  });
  const absl::Duration interval = std::max(options.pool_grace, absl::Seconds(5));
  reap_timer.Set(loop.Now() + interval, [this] { ReapOrphans(); });
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Agent::Agent(Agent&&) noexcept = default;
Agent& Agent::operator=(Agent&&) noexcept = default;
Agent::~Agent() = default;

absl::StatusOr<Agent> Agent::Start(const AgentOptions& options) {
  AgentOptions used = options;
  if (used.engine_listen.empty()) used.engine_listen = {DefaultEngineAddress()};
  if (used.bootstrap.empty()) return InvalidField("bootstrap", "", "at least one host:port");
  if (!used.agent_id.empty()) {
    PAGEFERRY_RETURN_IF_ERROR(CheckName("agent-id", used.agent_id, 128));
  }
  auto base = std::make_unique<Base>();
  base->options = std::move(used);
  PAGEFERRY_ASSIGN_OR_RETURN(base->policy, TransportPolicyOf(base->options));
  PAGEFERRY_ASSIGN_OR_RETURN(base->tls, Tls::Load(base->options.tls));
  PAGEFERRY_ASSIGN_OR_RETURN(base->tcp, StartTcp(base->options, base->policy, base->probe));
  auto impl = std::make_unique<Impl>(std::move(base));
  PAGEFERRY_RETURN_IF_ERROR(impl->Start());
  return Agent(std::move(impl));
}

const std::string& Agent::id() const { return impl_->id.value(); }
const std::vector<std::string>& Agent::engine_addresses() const { return impl_->engine_addresses; }
const std::string& Agent::peer_address() const { return impl_->peer_address; }
int Agent::peer_port() const { return impl_->peer_port; }
int Agent::health_port() const { return impl_->health_port; }
int Agent::metrics_port() const { return impl_->metrics_port; }
std::string Agent::Metrics() const { return impl_->registry.Serialize(); }
void Agent::Stop() { impl_->Stop(impl_->options.drain_timeout); }
void Agent::Stop(absl::Duration drain_timeout) { impl_->Stop(drain_timeout); }

}  // namespace pageferry::agent
