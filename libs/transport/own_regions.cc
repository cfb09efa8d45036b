#include "libs/transport/own_regions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::transport {

OwnRegions::Uses& OwnRegions::Uses::operator=(Uses&& other) noexcept {
  Clear();
  taken_ = std::move(other.taken_);
  other.taken_.clear();
  return *this;
}

const OwnRegions::Region* OwnRegions::Uses::Take(OwnRegions& regions, RegionId id) {
  if (const auto known = taken_.find(id); known != taken_.end()) return known->second.get();
  const absl::MutexLock lock(&regions.mutex_);
  const auto found = regions.regions_.find(id);
  if (found == regions.regions_.end()) return nullptr;
  found->second->uses.fetch_add(1, std::memory_order_relaxed);
  return taken_.emplace(id, found->second).first->second.get();
}

void OwnRegions::Uses::Clear() {
  for (const auto& [id, region] : taken_) region->uses.fetch_sub(1, std::memory_order_release);
  taken_.clear();
}

bool OwnRegions::Uses::AnyDamaged() const {
  return std::ranges::any_of(taken_, [](const auto& item) { return item.second->damaged(); });
}

absl::Status OwnRegions::Add(const OwnRegion& region) {
  const absl::MutexLock lock(&mutex_);
  if (region.data == nullptr || region.size.value() <= 0 || regions_.contains(region.id)) {
    return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle,
                     absl::StrCat("region ", region.id.value(), " is empty or known already"),
                     {{"handle", absl::StrCat(region.id.value())}});
  }
  auto added = std::make_shared<Region>();
  added->bytes = {region.data, region.size.value()};
  added->seals = region.seals;
  added->slot = SharedMapping::SlotOf(region.data);
  regions_.emplace(region.id, std::move(added));
  return absl::OkStatus();
}

absl::Status OwnRegions::Remove(RegionId id) {
  const absl::MutexLock lock(&mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return absl::OkStatus();
  if (found->second->uses.load(std::memory_order_acquire) > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse,
                     absl::StrCat("region ", id.value(), " is in use by a transfer"),
                     {{"by", "a transfer"}});
  }
  regions_.erase(found);
  return absl::OkStatus();
}

}  // namespace pageferry::transport
