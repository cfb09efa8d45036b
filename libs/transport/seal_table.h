#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "libs/transport/pool_layout.h"

namespace pageferry::transport {

/// A whole seal. Value type.
struct Seal {
  int32_t index = 0;
  uint64_t value = 0;

  friend bool operator==(const Seal&, const Seal&) = default;
};

/// The owner's side of a pool's seals: hands them out and breaks them.
///
/// Why a reader that finds its seal whole has read good bytes: the owner breaks the seal, *then*
/// lets the pages be reused, so whoever writes them does so after the break. The reader copies,
/// *then* looks at the seal. A reader that got even one byte of the new content has synchronised
/// with its writer (release before the write, acquire fence after the copy) and must see the break;
/// values never repeat, so it cannot take a later seal for its own. This is a sequence lock with
/// the number checked at the end only, which is enough since the value came in the offer.
///
/// Thread-safe. Borrows header and words, which must outlive it; others may scribble over both
/// without harm to this process.
class SealTable {
 public:
  /// Takes over the `kSealCount` words: all are broken, and a new generation begins.
  SealTable(PoolHeader& header, SealWord* words);

  /// Makes a whole seal with a value that none had before.
  /// kResourceExhausted, LIMIT_REACHED with "limit": all are in use. Retry once rooms have ended.
  absl::StatusOr<Seal> Make();

  /// Breaks it; pages may be reused once this has returned. A seal that is broken already, or was
  /// never made, is left alone.
  void Break(const Seal& seal);

  /// True while it is whole and its generation has not been declared void. For a way that reads the
  /// pages in this process: asked after the last read, as `PeerPool::SealIsWhole`.
  bool IsWhole(const Seal& seal) const;

  /// Breaks all and begins a new generation. For an engine that comes back to a living agent: it
  /// may have declared the generation void in the meantime.
  void BreakAll();

  /// Seals that are whole.
  int32_t whole() const;

 private:
  void BreakAllLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  PoolHeader& header_;
  SealWord* const words_;
  mutable absl::Mutex mutex_;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_counter_ ABSL_GUARDED_BY(mutex_) = 0;
  // What each word should be; 0 for a broken seal. The words themselves are not trusted.
  std::vector<uint64_t> values_ ABSL_GUARDED_BY(mutex_);
  std::vector<int32_t> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pageferry::transport
