#include "libs/common/health.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace pageferry {

HealthRegistry::Wakes HealthRegistry::WakesLocked() const {
  Wakes wakes;
  for (const auto& [watch, wake] : watches_) wakes.push_back(wake);
  return wakes;
}

void HealthRegistry::Set(absl::string_view service, bool serving) {
  Wakes wakes;
  {
    absl::MutexLock lock(&mutex_);
    if (frozen_) return;
    const auto [state, inserted] = services_.try_emplace(std::string(service), serving);
    if (!inserted && std::exchange(state->second, serving) == serving) return;
    wakes = WakesLocked();
  }
  for (const auto& wake : wakes) (*wake)();
}

void HealthRegistry::SetAllNotServing() { Freeze(false); }

void HealthRegistry::End() { Freeze(true); }

void HealthRegistry::Freeze(bool end) {
  Wakes wakes;
  {
    absl::MutexLock lock(&mutex_);
    frozen_ = true;
    if (end) ended_ = true;
    for (auto& [name, serving] : services_) serving = false;
    wakes = WakesLocked();
  }
  for (const auto& wake : wakes) (*wake)();
}

HealthRegistry::Serving HealthRegistry::Get(absl::string_view service) const {
  absl::MutexLock lock(&mutex_);
  const auto state = services_.find(std::string(service));
  return state == services_.end() ? Serving() : Serving(state->second);
}

bool HealthRegistry::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

int64_t HealthRegistry::Watch(Wake wake) {
  absl::MutexLock lock(&mutex_);
  watches_.emplace(++last_watch_, std::make_shared<const Wake>(std::move(wake)));
  return last_watch_;
}

void HealthRegistry::Unwatch(int64_t watch) {
  std::shared_ptr<const Wake> dropped;  // outlives the lock
  absl::MutexLock lock(&mutex_);
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  dropped = std::move(found->second);
  watches_.erase(found);
}

}  // namespace pageferry
