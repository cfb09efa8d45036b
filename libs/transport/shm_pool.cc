#include "libs/transport/shm_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"
#include "libs/common/status.h"
#include "libs/transport/memlock.h"

namespace pageferry::transport {
namespace {

constexpr int64_t kMinSize = 4096;
constexpr int64_t kMaxSize = int64_t{16} << 40;

absl::Status SystemError(absl::string_view what) {
  const std::string error = std::strerror(errno);
  return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle,
                   absl::StrCat(what, ": ", error), {{"error", error}});
}

absl::StatusOr<ByteCount> DataSize(const ShmPoolOptions& options) {
  if (options.control_only) return ByteCount();
  if (options.size.value() < kMinSize || options.size.value() > kMaxSize) {
    return InvalidField("size_bytes", absl::StrCat(options.size.value()), "4096 to 17592186044416");
  }
  return PoolSize(options.size, options.huge_pages);
}

absl::StatusOr<uint64_t> DrawNonce() {
  uint64_t nonce = 0;
  while (nonce == 0) {
    const ssize_t got = getrandom(&nonce, sizeof(nonce), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(nonce)) return SystemError("getrandom");
  }
  return nonce;
}

bool AgentIdIs(const PoolHeader& header, const std::string& agent_id) {
  const size_t length = strnlen(header.agent_id, sizeof(header.agent_id));
  return absl::string_view(header.agent_id, length) == agent_id;
}

enum class Leftover { kFits, kWorthless, kOfAnotherAgent };

// Reads by pread: the file may be of any size.
Leftover Judge(const PoolFile& file, const ShmPoolOptions& options, ByteCount data_size) {
  alignas(PoolHeader) char bytes[sizeof(PoolHeader)];
  if (pread(file.handle.fd(), bytes, sizeof(bytes), 0) != sizeof(bytes))
    return Leftover::kWorthless;
  const auto* header = std::launder(reinterpret_cast<const PoolHeader*>(bytes));
  if (header->magic != kPoolMagic) return Leftover::kWorthless;
  // Agent "a" with pool "b.c" and agent "a.b" with pool "c" have the same file name.
  if (!AgentIdIs(*header, options.agent_id)) return Leftover::kOfAnotherAgent;
  const bool fits = header->layout_version == kPoolLayoutVersion &&
                    header->seal_count == kSealCount && header->data_offset == kPoolDataOffset &&
                    header->data_size == data_size.value() &&
                    file.status.st_size == kPoolDataOffset + data_size.value();
  return fits ? Leftover::kFits : Leftover::kWorthless;
}

absl::Status NotOurs(const std::string& file_name, absl::string_view why) {
  return MakeError(absl::StatusCode::kAlreadyExists, Reason::kPoolExists,
                   absl::StrCat(file_name, " is ", why), {{"handle", file_name}});
}

absl::Status InUse(const std::string& file_name) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInUse,
                   absl::StrCat("a living agent has ", file_name), {{"by", "a living agent"}});
}

struct Claim {
  PoolFile file;
  bool adopt = false;
};

// Gets a file of that name, locked by us: an empty one, or one to adopt.
absl::StatusOr<Claim> ClaimFile(int dir_fd, const std::string& file_name,
                                const ShmPoolOptions& options, ByteCount data_size) {
  constexpr int kTries = 64;  // each lost try is another process's success
  for (int i = 0; i < kTries; ++i) {
    Claim claim;
    FileHandle made(openat(dir_fd, file_name.c_str(),
                           O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made.valid() && errno != EEXIST) return SystemError(file_name);
    const bool fresh = made.valid();
    if (fresh) {
      claim.file.handle = std::move(made);
    } else {
      auto [file, failure] = OpenPoolFile(dir_fd, file_name);
      if (!file.handle.valid()) {
        if (failure == OpenFailure::kGone) continue;
        return NotOurs(file_name, "not a plain file of this user");
      }
      claim.file = std::move(file);
    }
    const int fd = claim.file.handle.fd();
    if (!TryLock(fd, FileLock::kAgent)) return InUse(file_name);
    if (!StillNamed(dir_fd, file_name, fd)) continue;
    if (fresh) return claim;
    // Again, for the agent that had it until now may have changed it.
    if (fstat(fd, &claim.file.status) != 0) return SystemError(file_name);
    switch (Judge(claim.file, options, data_size)) {
      case Leftover::kFits:
        claim.adopt = true;
        return claim;
      case Leftover::kOfAnotherAgent:
        return NotOurs(file_name, "another agent's");
      case Leftover::kWorthless:
        if (unlinkat(dir_fd, file_name.c_str(), 0) != 0) return SystemError(file_name);
    }
  }
  return InUse(file_name);
}

}  // namespace

ByteCount PoolSize(ByteCount size, HugePages huge_pages) {
  const int64_t page = huge_pages == HugePages::kNo ? sysconf(_SC_PAGESIZE) : kHugePage;
  return ByteCount((size.value() + page - 1) / page * page);
}

absl::StatusOr<std::unique_ptr<ShmPool>> ShmPool::CreateOrAdopt(ShmPoolOptions options) {
  PAGEFERRY_ASSIGN_OR_RETURN(std::string file_name, PoolFileName(options.agent_id, options.name));
  PAGEFERRY_ASSIGN_OR_RETURN(const ByteCount size, DataSize(options));
  PAGEFERRY_ASSIGN_OR_RETURN(FileHandle dir, OpenFolder(options.dir));
  PAGEFERRY_ASSIGN_OR_RETURN(Claim claim, ClaimFile(dir.fd(), file_name, options, size));
  const bool adopt = claim.adopt;
  // From here on the destructor removes the file on errors; a leftover with good bytes stays.
  std::unique_ptr<ShmPool> pool(
      new ShmPool(options.name, std::move(dir), std::move(claim.file), std::move(file_name)));
  pool->leave_behind_ = adopt;
  PAGEFERRY_RETURN_IF_ERROR(pool->Open(options, size, adopt));
  pool->leave_behind_ = false;
  return pool;
}

absl::Status ShmPool::Reserve(ShmPoolOptions& options, ByteCount size) {
  auto space =
      options.available_space ? options.available_space(dir_.fd()) : AvailableShmSpace(dir_.fd());
  PAGEFERRY_RETURN_IF_ERROR(space.status());
  if (size > space->available) return OutOfShm(size, *space);
  return ReserveShm(file_.handle.fd(), size, options.dir);
}

// Before the header is written: a pool that was found there stays as it was, should this fail.
absl::Status ShmPool::Place(ShmPoolOptions& options, ByteCount size) {
  if (options.huge_pages != HugePages::kNo) {
    huge_ =
        options.use_huge_pages ? options.use_huge_pages(data(), size) : UseHugePages(data(), size);
    if (options.huge_pages == HugePages::kRequire && huge_.bytes < size) {
      return MakeError(absl::StatusCode::kResourceExhausted, Reason::kOutOfMemory, huge_.why,
                       {{"needed_bytes", absl::StrCat(size.value())},
                        {"available_bytes", absl::StrCat(huge_.bytes.value())},
                        {"where", "huge pages of shared memory"}});
    }
  }
  // Best effort: an older kernel does not know it.
  if (options.prefault) {
    madvise(mapping_.data(), static_cast<size_t>(mapping_.size().value()), MADV_POPULATE_WRITE);
  }
  return options.lock ? LockMemory(data(), size) : absl::OkStatus();
}

absl::Status ShmPool::Open(ShmPoolOptions& options, ByteCount size, bool adopt) {
  const int fd = file_.handle.fd();
  const ByteCount whole = size + ByteCount(kPoolDataOffset);
  if (options.lock) PAGEFERRY_RETURN_IF_ERROR(CheckMemlock(size, ReadMemlock()));
  if (!adopt) PAGEFERRY_RETURN_IF_ERROR(Reserve(options, whole));
  PAGEFERRY_ASSIGN_OR_RETURN(const uint64_t nonce, DrawNonce());
  PAGEFERRY_ASSIGN_OR_RETURN(mapping_,
                             SharedMapping::Map(fd, whole, SharedMapping::Access::kReadWrite));
  PAGEFERRY_RETURN_IF_ERROR(Place(options, size));

  // Readers of the earlier life compare nonce and seals; both change before anybody is told.
  auto* header = reinterpret_cast<PoolHeader*>(mapping_.data());
  auto* words = reinterpret_cast<SealWord*>(mapping_.data() + kSealTableOffset);
  std::atomic_ref<uint64_t>(header->nonce).store(nonce);
  seals_ = std::make_unique<SealTable>(*header, words);
  header->layout_version = kPoolLayoutVersion;
  header->seal_count = kSealCount;
  header->data_offset = kPoolDataOffset;
  header->data_size = size.value();
  std::memset(header->agent_id, 0, sizeof(header->agent_id));
  std::memcpy(header->agent_id, options.agent_id.data(), options.agent_id.size());
  std::atomic_ref<uint64_t>(header->magic).store(kPoolMagic, std::memory_order_seq_cst);

  // Not by the mode at open, which the umask cuts.
  if (options.group.has_value() && fchown(fd, static_cast<uid_t>(-1), *options.group) != 0) {
    return SystemError("group of the pool's file");
  }
  if (fchmod(fd, 0660) != 0) return SystemError("mode of the pool's file");
  adopted_ = adopt;
  local_ = {.shm_name = absl::StrCat("/", file_name_),
            .mapping_size = whole,
            .data_offset = ByteCount(kPoolDataOffset),
            .nonce = nonce};
  return absl::OkStatus();
}

ShmPool::~ShmPool() {
  // Nobody will break them later: from now on nothing holds the engine back from its pages.
  if (seals_ != nullptr) seals_->BreakAll();
  if (!leave_behind_ && StillNamed(dir_.fd(), file_name_, file_.handle.fd())) {
    unlinkat(dir_.fd(), file_name_.c_str(), 0);
  }
}

}  // namespace pageferry::transport
