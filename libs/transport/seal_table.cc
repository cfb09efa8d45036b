#include "libs/transport/seal_table.h"

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::transport {

SealTable::SealTable(PoolHeader& header, SealWord* words) : header_(header), words_(words) {
  const absl::MutexLock lock(&mutex_);
  BreakAllLocked();
}

void SealTable::BreakAllLocked() {
  generation_ = header_.generation.fetch_add(1, std::memory_order_seq_cst) + 1;
  for (int32_t i = 0; i < kSealCount; ++i) words_[i].store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  last_counter_ = 0;
  values_.assign(kSealCount, 0);
  free_.clear();
  for (int32_t i = kSealCount - 1; i >= 0; --i) free_.push_back(i);
}

absl::StatusOr<Seal> SealTable::Make() {
  const absl::MutexLock lock(&mutex_);
  if (free_.empty() || last_counter_ == kSealCounterMask) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kLimitReached,
                     "all seals of the pool are in use", {{"limit", absl::StrCat(kSealCount)}});
  }
  Seal seal;
  seal.index = free_.back();
  free_.pop_back();
  seal.value = MakeSealValue(generation_, ++last_counter_);
  values_[seal.index] = seal.value;
  words_[seal.index].store(seal.value, std::memory_order_release);
  return seal;
}

void SealTable::Break(const Seal& seal) {
  if (seal.value == 0 || seal.index < 0 || seal.index >= kSealCount) return;
  const absl::MutexLock lock(&mutex_);
  if (values_[seal.index] != seal.value) return;
  values_[seal.index] = 0;
  words_[seal.index].store(0, std::memory_order_seq_cst);
  // The release half of the argument in the header: the store comes before whatever this process,
  // or another that it tells, writes to the pages.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  free_.push_back(seal.index);
}

bool SealTable::IsWhole(const Seal& seal) const {
  if (seal.index < 0 || seal.index >= kSealCount) return false;
  const absl::MutexLock lock(&mutex_);
  // The lock orders this behind the reads; the header is another process's to change.
  return values_[seal.index] == seal.value &&
         SealIsOfGeneration(seal.value, header_.generation.load(std::memory_order_seq_cst));
}

void SealTable::BreakAll() {
  const absl::MutexLock lock(&mutex_);
  BreakAllLocked();
}

int32_t SealTable::whole() const {
  const absl::MutexLock lock(&mutex_);
  return kSealCount - static_cast<int32_t>(free_.size());
}

}  // namespace pageferry::transport
