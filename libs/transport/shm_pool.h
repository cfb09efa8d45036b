#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "libs/common/ids.h"
#include "libs/transport/host_pool.h"
#include "libs/transport/huge_pages.h"
#include "libs/transport/pool_file.h"
#include "libs/transport/seal_table.h"
#include "libs/transport/shared_mapping.h"
#include "libs/transport/shm_space.h"
#include "libs/transport/transport.h"

namespace pageferry::transport {

struct ShmPoolOptions {
  std::string agent_id;
  std::string name;
  /// Bytes of data, 4 KiB to 16 TiB; rounded up to whole memory pages, huge ones where asked for.
  ByteCount size;
  /// Header and seals alone, for data that lies elsewhere; `size` does not count then.
  bool control_only = false;
  /// Where shm_open() has its files.
  std::string dir = "/dev/shm";
  /// The group that may map it too (the mode is 0660); the process's own if not given.
  std::optional<gid_t> group;
  /// Touches all pages at once, so that the first transfers do not pay for it.
  bool prefault = true;
  HugePages huge_pages = HugePages::kNo;
  /// Locks the data in RAM.
  bool lock = false;
  /// Replaces `UseHugePages` in tests.
  absl::AnyInvocable<HugePagesGot(std::byte* data, ByteCount size)> use_huge_pages;
  /// Replaces `AvailableShmSpace` in tests.
  absl::AnyInvocable<absl::StatusOr<ShmSpace>(int dir_fd)> available_space;
};

/// The bytes of data that a pool has which was asked for with `size`.
ByteCount PoolSize(ByteCount size, HugePages huge_pages);

/// A pool in POSIX shared memory that this agent owns; see pool_layout.h for its inside.
///
/// The file "pageferry.<agent_id>.<name>" is locked as long as its agent lives: a file that nobody
/// has locked was left behind. One of the same agent, name and size is adopted with its bytes; its
/// seals are broken, and nonce and generation are new. Other leftovers of that name (another size,
/// another layout version, half made) are worthless to everybody: they are removed and made anew.
///
/// Owns file, lock and mapping. The destructor removes the file, but for `LeaveBehind`; memory that
/// others have mapped stays theirs until they unmap it. Thread-safe but for destruction.
class ShmPool final : public HostPool {
 public:
  /// May take long for a big pool: all its memory is reserved here (about 0.3 s a GiB).
  /// kInvalidArgument, INVALID_FIELD: name, id or size. kInvalidArgument, BAD_HANDLE: the system
  /// refused, with its error. kAlreadyExists, POOL_EXISTS: something that is not ours has the name
  /// (a link, another user's or another agent's file). kFailedPrecondition, IN_USE: a living agent
  /// has it. kResourceExhausted, OUT_OF_MEMORY with "needed_bytes", "available_bytes", "where":
  /// nothing stays behind; also where huge pages or the lock are a must and cannot be had.
  static absl::StatusOr<std::unique_ptr<ShmPool>> CreateOrAdopt(ShmPoolOptions options);

  ShmPool(const ShmPool&) = delete;
  ShmPool& operator=(const ShmPool&) = delete;
  ~ShmPool() override;

  const std::string& name() const { return name_; }

  // HostPool. The size is the one asked for, in whole pages.
  std::byte* data() const override { return mapping_.data() + kPoolDataOffset; }
  ByteCount size() const override { return mapping_.size() - ByteCount(kPoolDataOffset); }
  bool adopted() const override { return adopted_; }
  const LocalMapping& local() const override { return local_; }
  SealTable& seals() override { return *seals_; }
  bool imported() const override { return false; }
  bool writable() const override { return true; }
  bool damaged() const override { return mapping_.damaged(); }
  const HugePagesGot& huge() const override { return huge_; }

  /// The file stays when this object goes, for the next agent of this id to adopt.
  void LeaveBehind() { leave_behind_ = true; }

 private:
  ShmPool(std::string name, FileHandle dir, PoolFile file, std::string file_name)
      : name_(std::move(name)),
        dir_(std::move(dir)),
        file_(std::move(file)),
        file_name_(std::move(file_name)) {}

  absl::Status Reserve(ShmPoolOptions& options, ByteCount size);
  absl::Status Open(ShmPoolOptions& options, ByteCount size, bool adopt);
  absl::Status Place(ShmPoolOptions& options, ByteCount size);

  const std::string name_;
  const FileHandle dir_;
  const PoolFile file_;
  const std::string file_name_;
  SharedMapping mapping_;
  LocalMapping local_;
  std::unique_ptr<SealTable> seals_;
  HugePagesGot huge_;
  bool adopted_ = false;
  bool leave_behind_ = false;
};

}  // namespace pageferry::transport
