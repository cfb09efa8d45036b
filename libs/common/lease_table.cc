#include "libs/common/lease_table.h"

#include <cstddef>
#include <cstdint>

#include "libs/common/ids.h"

namespace pageferry {

void ExpiryHeap::Place(size_t position, const Item& item) {
  heap_[position] = item;
  places_[item.slot] = static_cast<uint32_t>(position);
}

void ExpiryHeap::SiftUp(size_t position, const Item& item) {
  while (position > 0) {
    const size_t parent = (position - 1) / 2;
    if (!(item < heap_[parent])) break;
    Place(position, heap_[parent]);
    position = parent;
  }
  Place(position, item);
}

void ExpiryHeap::SiftDown(size_t position, const Item& item) {
  while (true) {
    size_t child = 2 * position + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (!(heap_[child] < item)) break;
    Place(position, heap_[child]);
    position = child;
  }
  Place(position, item);
}

void ExpiryHeap::Set(uint32_t slot, MonotonicTime expiry) {
  if (slot >= places_.size()) places_.resize(slot + 1, kNowhere);
  const Item item{expiry, next_order_++, slot};
  const size_t position = places_[slot];
  if (position == kNowhere) {
    heap_.push_back(item);
    SiftUp(heap_.size() - 1, item);
  } else if (item < heap_[position]) {
    SiftUp(position, item);
  } else {
    SiftDown(position, item);
  }
}

void ExpiryHeap::Remove(uint32_t slot) {
  if (slot >= places_.size() || places_[slot] == kNowhere) return;
  const size_t position = places_[slot];
  places_[slot] = kNowhere;
  const Item last = heap_.back();
  heap_.pop_back();
  if (last.slot == slot) return;
  if (position > 0 && last < heap_[(position - 1) / 2]) {
    SiftUp(position, last);
  } else {
    SiftDown(position, last);
  }
}

}  // namespace pageferry
