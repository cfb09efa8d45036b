#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "libs/common/ids.h"
#include "libs/transport/host_pool.h"
#include "libs/transport/memory_file.h"
#include "libs/transport/shared_mapping.h"
#include "libs/transport/shm_pool.h"
#include "libs/transport/shm_space.h"

namespace pageferry::transport {

struct ImportOptions {
  std::string agent_id;
  std::string name;
  /// Bytes of data, 4 KiB to 16 TiB, and where they begin: a multiple of the memory page.
  ByteCount size;
  ByteCount data_offset;
  /// Exactly one of them names the memory: "/name" of shm_open, or an absolute path.
  std::string shm_name;
  std::string memory_file;
  /// The engine only sends from it: nothing of it is ever written.
  bool read_only = false;
  /// Refuses memory that is not on hugetlbfs.
  bool huge = false;
  /// Locks it in RAM.
  bool lock = false;
  /// Where shm_open() has its files.
  std::string dir = "/dev/shm";
  /// As in ShmPoolOptions.
  std::optional<gid_t> group;
  absl::AnyInvocable<absl::StatusOr<ShmSpace>(int dir_fd)> available_space;
};

/// What tells two imports apart.
struct ImportIdentity {
  MemoryFileId file;
  ByteCount data_offset;
  ByteCount size;
  bool read_only = false;

  friend bool operator==(const ImportIdentity&, const ImportIdentity&) = default;
};

/// A pool in shared memory that the engine made and owns.
///
/// That memory has no place for header and seals. They lie in a file of the agent's own, which has
/// a pool's name and layout but no data ("control file"): locked, adopted and reaped like a pool.
/// Peers map both read-only, see LocalData in transport.h.
///
/// The engine may cut or remove its file whenever it likes: see shared_mapping.h. The memory is
/// reserved here, so that it cannot run out later in the middle of a write.
///
/// Owns mapping, descriptor and control file; the destructor removes the latter and never touches
/// the engine's file. Thread-safe but for destruction.
class ImportedPool final : public HostPool {
 public:
  /// kInvalidArgument, INVALID_FIELD: name, size or offset. kInvalidArgument, BAD_HANDLE: no such
  /// memory, no permission, too short, not a plain file in memory, or a pool of an agent. Others as
  /// ShmPool::CreateOrAdopt, for the control file.
  static absl::StatusOr<std::unique_ptr<ImportedPool>> Open(ImportOptions options);

  /// The identity that `Open` would give. Errors as there.
  static absl::StatusOr<ImportIdentity> Identify(const ImportOptions& options);

  const ImportIdentity& identity() const { return identity_; }

  // HostPool
  std::byte* data() const override { return mapping_.data(); }
  ByteCount size() const override { return identity_.size; }
  const LocalMapping& local() const override { return local_; }
  SealTable& seals() override { return control_->seals(); }
  bool adopted() const override { return control_->adopted(); }
  bool imported() const override { return true; }
  bool writable() const override { return !identity_.read_only; }
  bool damaged() const override { return mapping_.damaged() || control_->damaged(); }
  const HugePagesGot& huge() const override { return huge_; }

 private:
  ImportedPool(ImportIdentity identity, FileHandle handle, SharedMapping mapping)
      : identity_(identity), handle_(std::move(handle)), mapping_(std::move(mapping)) {}

  const ImportIdentity identity_;
  // Stays open: peers reach a file without a name through it.
  const FileHandle handle_;
  const SharedMapping mapping_;
  std::unique_ptr<ShmPool> control_;
  LocalMapping local_;
  HugePagesGot huge_;
};

}  // namespace pageferry::transport
