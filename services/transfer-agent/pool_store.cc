#include "services/transfer-agent/pool_store.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/log.h"
#include "libs/common/status.h"

namespace pageferry::agent {
namespace {

LogArea log_area("pool");

absl::Status PoolNotFound(absl::string_view name) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kPoolNotFound,
                   absl::StrCat("no pool is named ", name), {{"pool", std::string(name)}});
}

PoolView ViewOf(const std::string& name, const transport::HostPool& pool) {
  return {.name = name,
          .size = pool.size(),
          .local = pool.local(),
          .adopted = pool.adopted(),
          .imported = pool.imported(),
          .read_only = !pool.writable(),
          .huge = pool.huge()};
}

absl::Status PoolExists(const std::string& name, absl::string_view with) {
  return MakeError(absl::StatusCode::kAlreadyExists, Reason::kPoolExists,
                   absl::StrCat("pool ", name, " lives ", with), {{"pool", name}});
}

std::optional<transport::ImportIdentity> IdentityOf(const transport::HostPool& pool) {
  const std::optional<transport::LocalData>& data = pool.local().data;
  if (!data.has_value()) return std::nullopt;
  return transport::ImportIdentity{.file = {.device = data->device, .inode = data->inode},
                                   .data_offset = data->offset,
                                   .size = pool.size(),
                                   .read_only = !pool.writable()};
}

absl::StatusOr<PoolView> GiveLive(const std::string& name, const transport::HostPool& pool,
                                  ByteCount size, bool huge) {
  if (pool.imported()) return PoolExists(name, "as an imported one");
  if (pool.size() != size) {
    return PoolExists(name, absl::StrCat("with ", pool.size().value(), " bytes"));
  }
  if (huge && pool.huge().bytes < size) return PoolExists(name, "without huge pages for all of it");
  PoolView view = ViewOf(name, pool);
  view.adopted = true;
  return view;
}

}  // namespace

PoolStore::PoolStore(Loop& loop, Worker& worker, std::vector<transport::Transport*> transports,
                     Options options)
    : loop_(loop),
      worker_(worker),
      transports_(std::move(transports)),
      options_(std::move(options)) {}

PoolStore::~PoolStore() {
  for (auto& [name, pool] : pools_) static_cast<void>(Unmap(pool));
}

void PoolStore::Create(const std::string& name, ByteCount size, transport::HugePages huge_pages,
                       Done done) {
  if (const auto found = pools_.find(name); found != pools_.end()) {
    return done(GiveLive(name, *found->second.shm, transport::PoolSize(size, huge_pages),
                         huge_pages == transport::HugePages::kRequire));
  }
  transport::ShmPoolOptions shm{.agent_id = options_.agent.value(),
                                .name = name,
                                .size = size,
                                .dir = options_.shm_dir,
                                .prefault = options_.prefault,
                                .huge_pages = huge_pages,
                                .lock = options_.lock};
  MakePool(
      name,
      [shm = std::move(shm)]() mutable {
        return transport::ShmPool::CreateOrAdopt(std::move(shm));
      },
      std::move(done),
      [this, name, size, huge_pages](Done waiting) {
        Create(name, size, huge_pages, std::move(waiting));
      });
}

void PoolStore::MakePool(const std::string& name, absl::AnyInvocable<Made()> make, Done done,
                         absl::AnyInvocable<void(Done)> again) {
  if (!making_.insert(name).second) {
    // Look again when that is done.
    worker_.Post([this, done = std::move(done), again = std::move(again)]() mutable {
      loop_.Post(
          [done = std::move(done), again = std::move(again)]() mutable { again(std::move(done)); });
    });
    return;
  }
  if (pools_.size() + making_.size() > options_.max_pools) {
    making_.erase(name);
    return done(MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                          "the agent has as many pools as it may have",
                          {{"limit", "pools"}, {"value", absl::StrCat(options_.max_pools)}}));
  }
  worker_.Post([this, name, make = std::move(make), done = std::move(done)]() mutable {
    loop_.Post([this, name, made = make(), done = std::move(done)]() mutable {
      making_.erase(name);
      done(Add(name, std::move(made)));
    });
  });
}

absl::StatusOr<PoolView> PoolStore::Add(const std::string& name, Made shm) {
  PAGEFERRY_RETURN_IF_ERROR(shm.status());
  Pool pool{.shm = *std::move(shm), .region = last_region_ = last_region_.Next(), .remote = {}};
  pool.remote = {.id = pool.region, .size = pool.shm->size(), .local = pool.shm->local()};
  for (transport::Transport* const transport : transports_) {
    const absl::StatusOr<transport::RemoteRegion> mapped =
        transport->MapRegion({.id = pool.region,
                              .data = pool.shm->data(),
                              .size = pool.shm->size(),
                              .local = pool.shm->local(),
                              .seals = &pool.shm->seals()});
    if (!mapped.ok()) {
      static_cast<void>(Unmap(pool));
      return mapped.status();
    }
    if (!mapped->remote_keys.empty()) {
      pool.remote.remote_keys = mapped->remote_keys;
      pool.remote.remote_address = mapped->remote_address;
    }
  }
  Log(LogLevel::kInfo, log_area, "pool_ready",
      {{"pool", name},
       {"bytes", pool.shm->size()},
       {"adopted", pool.shm->adopted()},
       {"imported", pool.shm->imported()},
       {"huge_bytes", pool.shm->huge().bytes}});
  if (!pool.shm->huge().why.empty()) {
    Log(LogLevel::kWarning, log_area, "huge_pages_short",
        {{"pool", name}, {"why", pool.shm->huge().why}});
  }
  PoolView view = ViewOf(name, *pool.shm);
  pools_.emplace(name, std::move(pool));
  return view;
}

void PoolStore::Import(PoolImport import, Done done) {
  import.agent_id = options_.agent.value();
  import.dir = options_.shm_dir;
  import.lock = options_.lock;
  if (pools_.contains(import.name)) return CompareImport(std::move(import), std::move(done));
  const std::string name = import.name;
  // Held twice: one of the two is run.
  const auto shared = std::make_shared<PoolImport>(std::move(import));
  MakePool(
      name, [shared] { return transport::ImportedPool::Open(std::move(*shared)); }, std::move(done),
      [this, shared](Done waiting) { Import(std::move(*shared), std::move(waiting)); });
}

void PoolStore::CompareImport(PoolImport import, Done done) {
  worker_.Post([this, import = std::move(import), done = std::move(done)]() mutable {
    auto identity = transport::ImportedPool::Identify(import);
    loop_.Post([this, import = std::move(import), identity = std::move(identity),
                done = std::move(done)]() mutable {
      if (!identity.ok()) return done(identity.status());
      const auto found = pools_.find(import.name);
      if (found == pools_.end()) return Import(std::move(import), std::move(done));
      const transport::HostPool& pool = *found->second.shm;
      if (IdentityOf(pool) != *identity) {
        return done(PoolExists(import.name, "and is other memory"));
      }
      PoolView view = ViewOf(import.name, pool);
      view.adopted = true;
      done(std::move(view));
    });
  });
}

bool PoolStore::IsImported(const std::string& name) const {
  const auto found = pools_.find(name);
  return found != pools_.end() && found->second.shm->imported();
}

absl::Status PoolStore::Unmap(const Pool& pool) {
  for (transport::Transport* const transport : transports_) {
    PAGEFERRY_RETURN_IF_ERROR(transport->UnmapRegion(pool.region));
  }
  return absl::OkStatus();
}

absl::Status PoolStore::Release(const std::string& name) {
  const auto found = pools_.find(name);
  if (found == pools_.end()) return PoolNotFound(name);
  PAGEFERRY_RETURN_IF_ERROR(Unmap(found->second));
  Log(LogLevel::kInfo, log_area, "pool_released", {{"pool", name}});
  worker_.Post([shm = std::move(found->second.shm)]() mutable { shm.reset(); });
  pools_.erase(found);
  return absl::OkStatus();
}

void PoolStore::ReleaseAll() {
  std::vector<std::string> names;
  names.reserve(pools_.size());
  for (const auto& [name, pool] : pools_) names.push_back(name);
  for (const std::string& name : names) {
    const absl::Status status = Release(name);
    if (!status.ok()) Log(LogLevel::kError, log_area, "release_failed", {{"why", status}});
  }
}

void PoolStore::SetSealRegions(const std::vector<transport::RemoteRegion>& regions) {
  seal_regions_.clear();
  for (const transport::RemoteRegion& region : regions) seal_regions_.push_back(region.id);
}

std::vector<PoolView> PoolStore::Views() const {
  std::vector<PoolView> views;
  views.reserve(pools_.size());
  for (const auto& [name, pool] : pools_) {
    views.push_back(ViewOf(name, *pool.shm));
  }
  return views;
}

ByteCount PoolStore::total() const {
  ByteCount total;
  for (const auto& [name, pool] : pools_) total += pool.shm->size();
  return total;
}

absl::StatusOr<transport::SealRef> PoolStore::Make() {
  absl::Status last = MakeError(absl::StatusCode::kFailedPrecondition, Reason::kEngineNotRegistered,
                                "no pool has seals");
  for (const RegionId region : seal_regions_) {
    Pool* const pool = FindRegion(region);
    if (pool == nullptr) continue;
    const absl::StatusOr<transport::Seal> seal = pool->shm->seals().Make();
    if (seal.ok()) {
      return transport::SealRef{.region = region, .index = seal->index, .value = seal->value};
    }
    last = seal.status();
  }
  return last;
}

void PoolStore::Break(const transport::SealRef& seal) {
  Pool* const pool = FindRegion(seal.region);
  if (pool != nullptr) pool->shm->seals().Break({.index = seal.index, .value = seal.value});
}

void PoolStore::BreakSeals() {
  for (auto& [name, pool] : pools_) pool.shm->seals().BreakAll();
}

PoolStore::Pool* PoolStore::FindRegion(RegionId region) {
  const auto found =
      std::ranges::find_if(pools_, [&](const auto& item) { return item.second.region == region; });
  return found == pools_.end() ? nullptr : &found->second;
}

}  // namespace pageferry::agent
