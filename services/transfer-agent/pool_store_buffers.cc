// Where the engine's buffers lie in its pools.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "services/transfer-agent/pool_store.h"
#include "services/transfer-agent/validate.h"

namespace pageferry::agent {
namespace {

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
        if (engine.role == Role::kDecode && !found->second.shm->writable()) {
          return InField(InvalidField("pool_name", buffer.pool_name,
                                      "a pool that was not imported as read_only"),
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

}  // namespace pageferry::agent
