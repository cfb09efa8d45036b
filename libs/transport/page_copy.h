#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

namespace pageferry::transport {

/// `size` bytes to copy from `source` to `target`. Value type; borrows both.
struct Segment {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t size = 0;
};

/// How the bytes go. All but kMemcpy write past the caches.
enum class CopyMethod { kMemcpy, kSse2, kAvx2 };

/// The fastest of this processor; kMemcpy where it is not x86-64.
CopyMethod BestCopyMethod();
/// What this processor can do.
std::vector<CopyMethod> CopyMethods();

/// Copies all segments. Any size and alignment; no target may overlap another segment.
///
/// Pages lie scattered, so that a plain loop waits for memory at the head of each one. Four
/// segments are copied in turns, 128 bytes each, with streaming stores: about twice the speed of
/// memcpy (bench/README.md). When it returns, every store is visible as an ordinary one would be.
///
/// The source may be changed by others meanwhile: the bytes are then any mixture, see SealWord.
/// Thread-safe.
void CopySegments(absl::Span<const Segment> segments);
/// The same by a certain method, which must be one of `CopyMethods()`.
void CopySegments(absl::Span<const Segment> segments, CopyMethod method);

}  // namespace pageferry::transport
