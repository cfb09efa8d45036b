#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "libs/common/ids.h"

namespace pageferry {

/// A heap of slot numbers ordered by (expiry, order of setting). For `LeaseTable`.
///
/// Thread-compatible. All steps O(log n); memory only grows with the largest slot number.
class ExpiryHeap {
 public:
  /// Adds `slot`, or moves it, to `expiry`; among equal times it comes last.
  void Set(uint32_t slot, MonotonicTime expiry);
  /// Takes `slot` out; nothing happens when it is not in.
  void Remove(uint32_t slot);
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  /// The slot that expires first, and when. The heap must not be empty.
  uint32_t top() const { return heap_.front().slot; }
  MonotonicTime top_expiry() const { return heap_.front().expiry; }
  /// When `slot`, which must be in, expires.
  MonotonicTime expiry(uint32_t slot) const { return heap_[places_[slot]].expiry; }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  struct Item {
    MonotonicTime expiry;
    uint64_t order;
    uint32_t slot;
    bool operator<(const Item& other) const {
      return std::pair(expiry, order) < std::pair(other.expiry, other.order);
    }
  };

  void Place(size_t position, const Item& item);
  void SiftUp(size_t position, const Item& item);
  void SiftDown(size_t position, const Item& item);

  std::vector<Item> heap_;
  std::vector<uint32_t> places_;  // slot -> position in heap_
  uint64_t next_order_ = 0;
};

/// Claims that lapse unless renewed: which keys are alive, and which have expired.
///
/// Thread-compatible: the caller serialises. Pure: no clock, no thread, no I/O. Owns its keys;
/// about 100 bytes each beside the key, O(log n) a step, good for millions. A lease lives while
/// `now < expiry`; from then on it can be neither renewed nor found, but stays until `ExpireUpTo`
/// reports it, so that every expiry is reported exactly once.
/// `Key` is copyable, hashable by absl and comparable by ==.
template <class Key>
class LeaseTable {
 public:
  /// Claims `key` until `now + ttl`, or starts its lease anew when it has one, also an expired one
  /// that was not reported yet: that expiry is then never reported. Returns the expiry. A ttl of 0
  /// or less has expired at once. Ranges of ttl are the caller's matter.
  MonotonicTime Grant(const Key& key, absl::Duration ttl, MonotonicTime now) {
    const auto [entry, inserted] = slots_.try_emplace(key, 0);
    if (inserted) entry->second = AddSlot(key);
    leases_[entry->second].ttl = ttl;
    return SetExpiry(entry->second, now);
  }

  /// Prolongs a living lease to `now` plus the ttl it was granted; never shortens it. Returns the
  /// expiry, or nothing for a key that has no lease or an expired one: claim it anew.
  std::optional<MonotonicTime> Renew(const Key& key, MonotonicTime now) {
    const auto entry = slots_.find(key);
    if (entry == slots_.end()) return std::nullopt;
    const MonotonicTime expiry = heap_.expiry(entry->second);
    if (now >= expiry) return std::nullopt;
    if (now + leases_[entry->second].ttl <= expiry) return expiry;
    return SetExpiry(entry->second, now);
  }

  /// Ends a lease now; it is not reported by `ExpireUpTo`. False when the key has none. An expired
  /// one that was not reported yet counts as there.
  bool Revoke(const Key& key) {
    const auto entry = slots_.find(key);
    if (entry == slots_.end()) return false;
    FreeSlot(entry->second);
    slots_.erase(entry);
    return true;
  }

  /// Removes leases whose expiry is `now` or before, at most `max_count`, and returns their keys in
  /// the order (expiry, last Grant or Renew). When as many as `max_count` come back, call again:
  /// the bound keeps one step short after a long pause.
  std::vector<Key> ExpireUpTo(MonotonicTime now, size_t max_count) {
    std::vector<Key> expired;
    while (expired.size() < max_count && !heap_.empty() && heap_.top_expiry() <= now) {
      const uint32_t slot = heap_.top();
      slots_.erase(*leases_[slot].key);
      expired.push_back(*std::move(leases_[slot].key));
      FreeSlot(slot);
    }
    return expired;
  }

  /// When to call `ExpireUpTo` next; InfiniteFuture when there is no lease.
  MonotonicTime NextExpiry() const {
    return heap_.empty() ? MonotonicTime::InfiniteFuture() : heap_.top_expiry();
  }

  /// When the lease of `key` expires, or nothing when it does not live at `now`.
  std::optional<MonotonicTime> ExpiryOf(const Key& key, MonotonicTime now) const {
    const auto entry = slots_.find(key);
    if (entry == slots_.end() || heap_.expiry(entry->second) <= now) return std::nullopt;
    return heap_.expiry(entry->second);
  }

  /// Leases held, with those that have expired and were not reported yet.
  size_t size() const { return slots_.size(); }

 private:
  struct Lease {
    std::optional<Key> key;
    absl::Duration ttl;
  };

  uint32_t AddSlot(const Key& key) {
    if (free_.empty()) {
      leases_.push_back({key, {}});
      return static_cast<uint32_t>(leases_.size() - 1);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    leases_[slot].key = key;
    return slot;
  }

  void FreeSlot(uint32_t slot) {
    heap_.Remove(slot);
    leases_[slot].key.reset();
    free_.push_back(slot);
  }

  MonotonicTime SetExpiry(uint32_t slot, MonotonicTime now) {
    const MonotonicTime expiry = now + leases_[slot].ttl;
    heap_.Set(slot, expiry);
    return expiry;
  }

  absl::flat_hash_map<Key, uint32_t> slots_;
  std::vector<Lease> leases_;  // by slot
  std::vector<uint32_t> free_;
  ExpiryHeap heap_;
};

}  // namespace pageferry
