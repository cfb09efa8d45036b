#include "services/transfer-agent/pool_store.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/log.h"
#include "libs/common/status.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {
namespace {

LogArea log_area("pool");

constexpr int64_t kMemoryPage = 4096;

absl::Status PoolNotFound(absl::string_view name) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kPoolNotFound,
                   absl::StrCat("no pool is named ", name), {{"pool", std::string(name)}});
}

/// A buffer in its pool, and where the profile names it.
struct Range {
  RegionId region;
  ByteCount begin;
  ByteCount end;
  const char* list;
  int64_t index;
};

/// Two buffers with bytes in common would overwrite each other, and the room would succeed.
absl::Status CheckDisjoint(std::vector<Range> ranges) {
  std::ranges::sort(ranges, [](const Range& a, const Range& b) {
    return std::tie(a.region, a.begin) < std::tie(b.region, b.begin);
  });
  for (size_t i = 1; i < ranges.size(); ++i) {
    const Range& before = ranges[i - 1];
    const Range& range = ranges[i];
    if (range.region != before.region || range.begin >= before.end) continue;
    return InField(InvalidField("offset_bytes", absl::StrCat(range.begin.value()),
                                absl::StrCat(before.end.value(), " or more, behind ", before.list,
                                             "[", before.index, "]")),
                   range.list, range.index);
  }
  return absl::OkStatus();
}

/// Calls `visit(buffer, list, index)` for every buffer of `profile`.
template <class Profile, class Visit>
absl::Status VisitBuffers(Profile& profile, Visit visit) {
  for (size_t i = 0; i < profile.entries.size(); ++i) {
    PAGEFERRY_RETURN_IF_ERROR(visit(profile.entries[i].pages, "profile.entries", i));
  }
  for (size_t i = 0; i < profile.states.size(); ++i) {
    for (auto& entry : profile.states[i].entries) {
      PAGEFERRY_RETURN_IF_ERROR(visit(entry.items, "profile.states", i));
    }
  }
  for (size_t i = 0; i < profile.aux.size(); ++i) {
    PAGEFERRY_RETURN_IF_ERROR(visit(profile.aux[i].slots, "profile.aux", i));
  }
  return absl::OkStatus();
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

void PoolStore::Create(const std::string& name, ByteCount size,
                       absl::AnyInvocable<void(absl::StatusOr<PoolView>)> done) {
  if (const auto found = pools_.find(name); found != pools_.end()) {
    const ByteCount whole((size.value() + kMemoryPage - 1) / kMemoryPage * kMemoryPage);
    if (found->second.shm->size() != whole) {
      return done(MakeError(
          absl::StatusCode::kAlreadyExists, Reason::kPoolExists,
          absl::StrCat("pool ", name, " lives with ", found->second.shm->size().value(), " bytes"),
          {{"pool", name}}));
    }
    return done(PoolView{.name = name,
                         .size = found->second.shm->size(),
                         .local = found->second.shm->local(),
                         .adopted = true});
  }
  if (!making_.insert(name).second) {
    // Somebody makes it right now: look again when that is done.
    worker_.Post([this, name, size, done = std::move(done)]() mutable {
      loop_.Post([this, name, size, done = std::move(done)]() mutable {
        Create(name, size, std::move(done));
      });
    });
    return;
  }
  if (pools_.size() + making_.size() > options_.max_pools) {
    making_.erase(name);
    return done(MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                          "the agent has as many pools as it may have",
                          {{"limit", "pools"}, {"value", absl::StrCat(options_.max_pools)}}));
  }
  transport::ShmPoolOptions shm{.agent_id = options_.agent.value(),
                                .name = name,
                                .size = size,
                                .dir = options_.shm_dir,
                                .prefault = options_.prefault};
  worker_.Post([this, name, shm = std::move(shm), done = std::move(done)]() mutable {
    auto made = transport::ShmPool::CreateOrAdopt(std::move(shm));
    loop_.Post([this, name, made = std::move(made), done = std::move(done)]() mutable {
      making_.erase(name);
      done(Add(name, std::move(made)));
    });
  });
}

absl::StatusOr<PoolView> PoolStore::Add(const std::string& name,
                                        absl::StatusOr<std::unique_ptr<transport::ShmPool>> shm) {
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
      {{"pool", name}, {"bytes", pool.shm->size()}, {"adopted", pool.shm->adopted()}});
  PoolView view{.name = name,
                .size = pool.shm->size(),
                .local = pool.shm->local(),
                .adopted = pool.shm->adopted()};
  pools_.emplace(name, std::move(pool));
  return view;
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

absl::Status PoolStore::Resolve(EngineInfo& engine) const {
  std::vector<Range> ranges;
  PAGEFERRY_RETURN_IF_ERROR(
      VisitBuffers(engine.profile, [&](Buffer& buffer, const char* list, size_t index) {
        if (buffer.item_size.value() == 0) return absl::OkStatus();
        const auto found = pools_.find(buffer.pool_name);
        if (found == pools_.end()) return PoolNotFound(buffer.pool_name);
        const ByteCount end = buffer.offset + buffer.item_size * buffer.item_count;
        if (end > found->second.shm->size()) {
          return InField(InvalidField("offset_bytes", absl::StrCat(buffer.offset.value()),
                                      absl::StrCat("offset + count * item_bytes up to ",
                                                   found->second.shm->size().value())),
                         list, static_cast<int64_t>(index));
        }
        buffer.region = found->second.region;
        ranges.push_back({buffer.region, buffer.offset, end, list, static_cast<int64_t>(index)});
        return absl::OkStatus();
      }));
  return CheckDisjoint(std::move(ranges));
}

std::vector<transport::RemoteRegion> PoolStore::RegionsOf(const EngineInfo& engine) const {
  std::set<RegionId> used;
  static_cast<void>(VisitBuffers(engine.profile, [&](const Buffer& buffer, const char*, size_t) {
    used.insert(buffer.region);
    return absl::OkStatus();
  }));
  std::vector<transport::RemoteRegion> regions;
  for (const auto& [name, pool] : pools_) {
    if (used.contains(pool.region)) regions.push_back(pool.remote);
  }
  return regions;
}

void PoolStore::SetSealRegions(const std::vector<transport::RemoteRegion>& regions) {
  seal_regions_.clear();
  for (const transport::RemoteRegion& region : regions) seal_regions_.push_back(region.id);
}

std::vector<PoolView> PoolStore::Views() const {
  std::vector<PoolView> views;
  views.reserve(pools_.size());
  for (const auto& [name, pool] : pools_) {
    views.push_back({.name = name,
                     .size = pool.shm->size(),
                     .local = pool.shm->local(),
                     .adopted = pool.shm->adopted()});
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
