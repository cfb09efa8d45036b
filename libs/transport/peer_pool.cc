#include "libs/transport/peer_pool.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/transport/memory_file.h"
#include "libs/transport/pool_file.h"

namespace pageferry::transport {
namespace {

absl::Status No(const RemoteRegion& region, absl::string_view why) {
  const std::string text = absl::StrCat("region ", region.id.value(), ": ", why);
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport,
                   absl::StrCat("local: ", text), {{"local", text}});
}

absl::Status CheckTold(const RemoteRegion& region) {
  if (!region.local.has_value()) return No(region, "the peer tells no shared memory");
  const LocalMapping& local = *region.local;
  if (local.shm_name.empty() || local.shm_name[0] != '/' ||
      !IsPlainFileName(absl::string_view(local.shm_name).substr(1))) {
    return No(region, "not the name of shared memory");
  }
  const ByteCount inside = local.data.has_value() ? ByteCount() : region.size;
  if (local.data_offset.value() != kPoolDataOffset || region.size.value() <= 0 ||
      local.mapping_size < local.data_offset + inside) {
    return No(region, "its sizes do not agree");
  }
  return absl::OkStatus();
}

// By name, where that still is the file that was told; else through the agent's descriptor. The
// peer chooses two numbers at most, never a path, and what is opened is memory.
absl::StatusOr<MemoryFile> OpenData(const std::string& dir, const LocalData& data) {
  const MemoryFileId told{.device = data.device, .inode = data.inode};
  constexpr auto kAccess = SharedMapping::Access::kReadOnly;
  if (!data.shm_name.empty()) {
    auto named = OpenShm(dir, data.shm_name, kAccess);
    if (named.ok() && named->id == told) return named;
  }
  const std::string path = PathOfDescriptor(data.pid, data.fd);
  auto file = OpenMemoryFile(path, kAccess);
  if (file.ok() && file->id != told) return BadHandle(path, "other memory than the agent told");
  return file;
}

absl::StatusOr<SharedMapping> MapData(const std::string& dir, const RemoteRegion& region) {
  if (!region.local->data.has_value()) return SharedMapping();
  const LocalData& data = *region.local->data;
  PAGEFERRY_ASSIGN_OR_RETURN(const MemoryFile file, OpenData(dir, data));
  if (data.offset.value() < 0 || data.offset.value() % file.page.value() != 0 ||
      data.offset + region.size > file.size) {
    return BadHandle(data.shm_name, "the engine's memory is too short");
  }
  return SharedMapping::Map(file.handle.fd(), region.size, SharedMapping::Access::kReadOnly,
                            data.offset);
}

uint64_t Load(const uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

}  // namespace

absl::StatusOr<std::unique_ptr<PeerPool>> PeerPool::Open(const std::string& dir,
                                                         const RemoteRegion& region) {
  PAGEFERRY_RETURN_IF_ERROR(CheckTold(region));
  const LocalMapping& local = *region.local;
  const auto folder = OpenFolder(dir);
  if (!folder.ok()) return No(region, folder.status().message());
  const FileHandle file(openat(folder->fd(), local.shm_name.c_str() + 1,
                               O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.valid()) return No(region, absl::StrCat(local.shm_name, ": ", std::strerror(errno)));
  struct stat status = {};
  if (fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size < local.mapping_size.value()) {
    return No(region, "the file is not one, or too short");
  }
  auto mapping =
      SharedMapping::Map(file.fd(), local.mapping_size, SharedMapping::Access::kReadOnly);
  if (!mapping.ok()) return No(region, mapping.status().message());
  auto data = MapData(dir, region);
  if (!data.ok()) return No(region, data.status().message());
  const ByteCount inside = local.data.has_value() ? ByteCount() : region.size;
  std::unique_ptr<PeerPool> pool(new PeerPool(*std::move(mapping), *std::move(data), region.size));
  const PoolHeader& header = pool->header();
  if (Load(header.magic) != kPoolMagic) return No(region, "not a pool");
  if (header.layout_version != kPoolLayoutVersion || header.seal_count != kSealCount) {
    return No(region, absl::StrCat("pool layout version ", header.layout_version, " with ",
                                   header.seal_count, " seals"));
  }
  if (Load(header.nonce) != local.nonce) return No(region, "another pool has its name");
  const bool has_data = header.data_size != 0;
  if (header.data_offset != kPoolDataOffset || header.data_size < inside.value() ||
      has_data == local.data.has_value()) {
    return No(region, "its sizes are not those of the pool");
  }
  if (pool->damaged()) return No(region, "the file was cut short");
  return pool;
}

bool PeerPool::SealIsWhole(int32_t index, uint64_t value) const {
  // The reader's half of the argument in seal_table.h: no read of the copy moves down past this
  // fence, and the two loads below do not move up.
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto* words = reinterpret_cast<const SealWord*>(mapping_.data() + kSealTableOffset);
  const uint64_t word = words[index].load(std::memory_order_acquire);
  const uint64_t generation = header().generation.load(std::memory_order_acquire);
  return word == value && SealIsOfGeneration(value, generation);
}

}  // namespace pageferry::transport
