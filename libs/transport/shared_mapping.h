#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "libs/common/ids.h"

namespace pageferry::transport {

/// A shared mapping of a file that other processes may cut short at any time.
///
/// Touching a page that the file has no more raises SIGBUS, which would end the process: one
/// ftruncate() by an engine or peer on the host would be enough. The first `Map` installs a handler
/// for the process. A fault inside a mapping of this class puts a page of zeros in the missing
/// one's place and marks the mapping as damaged; the access goes on. Whoever copies looks at
/// `damaged()` afterwards. Only the faulting page is replaced, so that what is still shared (the
/// seals above all) stays so. Other faults go to the handler that was there before.
///
/// Owns the mapping, not the file descriptor. Movable; thread-safe but for move and destruction.
/// Left out of core dumps: it holds what users wrote.
class SharedMapping {
 public:
  enum class Access { kReadOnly, kReadWrite };

  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  /// Maps `size` bytes of `fd` from `offset`, which is a multiple of the file's memory page. Begins
  /// at a boundary of 2 MiB, so that huge pages can be mapped as such. kInvalidArgument,
  /// BAD_HANDLE: the system refused, with its own error.
  static absl::StatusOr<SharedMapping> Map(int fd, ByteCount size, Access access,
                                           ByteCount offset = {});

  /// Null when default-made or moved from.
  std::byte* data() const { return data_; }
  ByteCount size() const { return size_; }

  /// True when a page was missing when it was touched: what was read is zeros, what was written is
  /// lost. Never false again.
  bool damaged() const { return slot_ != nullptr && Damaged(*slot_); }

  /// What the handler knows of a mapping. Never freed, but used for another mapping in time.
  struct Slot;
  /// That of the mapping which holds `address`; null for other memory.
  static const Slot* SlotOf(const void* address);
  /// As `damaged()`.
  static bool Damaged(const Slot& slot);

 private:
  std::byte* data_ = nullptr;
  ByteCount size_;
  ByteCount reserved_;  // in whole memory pages of the file
  Slot* slot_ = nullptr;
};

}  // namespace pageferry::transport
