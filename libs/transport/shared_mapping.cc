#include "libs/transport/shared_mapping.h"

#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/error.h"

namespace pageferry::transport {

// The handler may run inside ThreadSanitizer's own functions for atomics, which are not reentrant:
// all that it reads and writes is kept from instrumentation.
#if defined(__clang__)
#define PAGEFERRY_NOT_INSTRUMENTED __attribute__((disable_sanitizer_instrumentation, noinline))
#else
#define PAGEFERRY_NOT_INSTRUMENTED
#endif

// Slots are reused, never freed: the handler walks the list without a lock. end is 0 while a slot
// is free; it is set last and cleared first. Accessed by Load and Store alone.
struct SharedMapping::Slot {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  uintptr_t writable = 0;
  uintptr_t page = 0;  // what can be replaced in one piece: a hugetlbfs mapping cannot be split
  uintptr_t damaged = 0;
  Slot* next = nullptr;  // constant once the slot is in the list
};

namespace {

using Slot = SharedMapping::Slot;

Slot* slots = nullptr;
struct sigaction previous_action;

template <class T>
PAGEFERRY_NOT_INSTRUMENTED T Load(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

template <class T>
PAGEFERRY_NOT_INSTRUMENTED void Store(T& word, T value) {
  __atomic_store_n(&word, value, __ATOMIC_SEQ_CST);
}

PAGEFERRY_NOT_INSTRUMENTED Slot* FindSlot(uintptr_t address) {
  for (Slot* slot = Load(slots); slot != nullptr; slot = slot->next) {
    const uintptr_t end = Load(slot->end);
    const uintptr_t begin = Load(slot->begin);
    if (address >= begin && address < end && Load(slot->end) == end) return slot;
  }
  return nullptr;
}

// Async-signal-safe: a bare system call, for ThreadSanitizer's mmap takes locks.
PAGEFERRY_NOT_INSTRUMENTED bool ReplacePage(const siginfo_t& info) {
  if (info.si_code <= 0) return false;  // sent by somebody, not a fault
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  Slot* slot = FindSlot(address);
  if (slot == nullptr) return false;
  Store(slot->damaged, uintptr_t{1});
  const int access = Load(slot->writable) != 0 ? PROT_READ | PROT_WRITE : PROT_READ;
  const uintptr_t page_size = Load(slot->page);
  const uintptr_t page = address & ~(page_size - 1);
  const int64_t placed =
      syscall(SYS_mmap, page, page_size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return static_cast<uintptr_t>(placed) == page;
}

PAGEFERRY_NOT_INSTRUMENTED void OnBusError(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (!ReplacePage(*info)) {
    if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
      previous_action.sa_sigaction(signal, info, context);
    } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
      previous_action.sa_handler(signal);
    } else {
      // The access is tried again, or the signal comes again, and ends the process.
      struct sigaction standard = {};
      standard.sa_handler = SIG_DFL;
      sigaction(signal, &standard, nullptr);
      if (info->si_code <= 0) raise(signal);
    }
  }
  errno = saved_errno;
}

void InstallHandler() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = &OnBusError;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous_action);
  });
}

absl::Mutex& SlotsMutex() {
  static auto* const mutex = new absl::Mutex;
  return *mutex;
}

Slot* TakeSlot(const void* data, size_t size, bool writable, size_t page) {
  const absl::MutexLock lock(&SlotsMutex());
  Slot* slot = slots;
  while (slot != nullptr && Load(slot->end) != 0) slot = slot->next;
  if (slot == nullptr) {
    slot = new Slot;
    slot->next = slots;
    Store(slots, slot);
  }
  const auto begin = reinterpret_cast<uintptr_t>(data);
  Store(slot->begin, begin);
  Store(slot->writable, uintptr_t{writable});
  Store(slot->page, uintptr_t{page});
  Store(slot->damaged, uintptr_t{0});
  Store(slot->end, begin + size);
  return slot;
}

size_t PageOf(int fd) {
  struct statfs system = {};
  const bool huge = fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
  return static_cast<size_t>(huge ? system.f_bsize : sysconf(_SC_PAGESIZE));
}

// As mmap, at a boundary of `alignment`; MAP_FAILED and errno where the system refuses.
void* MapAligned(size_t bytes, int access, int fd, off_t offset, size_t alignment) {
  void* const room = mmap(nullptr, bytes + alignment, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return room;
  const auto begin = reinterpret_cast<uintptr_t>(room);
  const uintptr_t aligned = (begin + alignment - 1) & ~(alignment - 1);
  void* const data =
      mmap(reinterpret_cast<void*>(aligned), bytes, access, MAP_SHARED | MAP_FIXED, fd, offset);
  const int error = errno;
  if (data == MAP_FAILED) {
    munmap(room, bytes + alignment);
    errno = error;
    return data;
  }
  if (aligned > begin) munmap(room, aligned - begin);
  const uintptr_t end = aligned + bytes;
  munmap(reinterpret_cast<void*>(end), begin + bytes + alignment - end);
  return data;
}

}  // namespace

absl::StatusOr<SharedMapping> SharedMapping::Map(int fd, ByteCount size, Access access,
                                                 ByteCount offset) {
  constexpr size_t kAlignment = size_t{2} << 20;
  InstallHandler();
  const bool writable = access == Access::kReadWrite;
  const size_t page = PageOf(fd);
  const auto bytes = (static_cast<size_t>(size.value()) + page - 1) / page * page;
  void* const data = MapAligned(bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, fd,
                                offset.value(), std::max(kAlignment, page));
  if (data == MAP_FAILED) {
    const std::string error = std::strerror(errno);
    return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle,
                     absl::StrCat("cannot map ", bytes, " bytes: ", error), {{"error", error}});
  }
  madvise(data, bytes, MADV_DONTDUMP);
  SharedMapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = size;
  mapping.reserved_ = ByteCount(static_cast<int64_t>(bytes));
  mapping.slot_ = TakeSlot(data, bytes, writable, page);
  return mapping;
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, ByteCount())),
      reserved_(std::exchange(other.reserved_, ByteCount())),
      slot_(std::exchange(other.slot_, nullptr)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(reserved_, other.reserved_);
  std::swap(slot_, other.slot_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (slot_ == nullptr) return;
  {
    const absl::MutexLock lock(&SlotsMutex());
    Store(slot_->end, uintptr_t{0});
  }
  munmap(data_, static_cast<size_t>(reserved_.value()));
}

const SharedMapping::Slot* SharedMapping::SlotOf(const void* address) {
  return FindSlot(reinterpret_cast<uintptr_t>(address));
}

bool SharedMapping::Damaged(const Slot& slot) { return Load(slot.damaged) != 0; }

}  // namespace pageferry::transport
