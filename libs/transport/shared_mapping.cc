#include "libs/transport/shared_mapping.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "libs/common/error.h"

namespace pageferry::transport {

// Slots are reused, never freed: the handler walks the list without a lock. end is 0 while a slot
// is free; it is set last and cleared first.
struct SharedMapping::Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> writable{false};
  std::atomic<bool> damaged{false};
  Slot* next = nullptr;
};

namespace {

using Slot = SharedMapping::Slot;

std::atomic<Slot*> slots{nullptr};
struct sigaction previous_action;
uintptr_t page_size = 4096;

Slot* FindSlot(uintptr_t address) {
  for (Slot* slot = slots.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
    const uintptr_t end = slot->end.load(std::memory_order_acquire);
    const uintptr_t begin = slot->begin.load(std::memory_order_acquire);
    if (address >= begin && address < end && slot->end.load(std::memory_order_relaxed) == end) {
      return slot;
    }
  }
  return nullptr;
}

// Async-signal-safe: atomics and mmap.
bool ReplacePage(const siginfo_t& info) {
  if (info.si_code <= 0) return false;  // sent by somebody, not a fault
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  Slot* slot = FindSlot(address);
  if (slot == nullptr) return false;
  slot->damaged.store(true, std::memory_order_release);
  const int access = slot->writable.load() ? PROT_READ | PROT_WRITE : PROT_READ;
  void* page = reinterpret_cast<void*>(address & ~(page_size - 1));
  return mmap(page, page_size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
}

void OnBusError(int signal, siginfo_t* info, void* context) {
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
    page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
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

Slot* TakeSlot(const void* data, size_t size, bool writable) {
  const absl::MutexLock lock(&SlotsMutex());
  Slot* slot = slots.load(std::memory_order_relaxed);
  while (slot != nullptr && slot->end.load(std::memory_order_relaxed) != 0) slot = slot->next;
  if (slot == nullptr) {
    slot = new Slot;
    slot->next = slots.load(std::memory_order_relaxed);
    slots.store(slot, std::memory_order_release);
  }
  const auto begin = reinterpret_cast<uintptr_t>(data);
  slot->begin.store(begin, std::memory_order_release);
  slot->writable.store(writable, std::memory_order_release);
  slot->damaged.store(false, std::memory_order_release);
  slot->end.store(begin + size, std::memory_order_release);
  return slot;
}

}  // namespace

absl::StatusOr<SharedMapping> SharedMapping::Map(int fd, ByteCount size, Access access) {
  InstallHandler();
  const bool writable = access == Access::kReadWrite;
  const auto bytes = static_cast<size_t>(size.value());
  void* data =
      mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const std::string error = std::strerror(errno);
    return MakeError(absl::StatusCode::kInvalidArgument, Reason::kBadHandle,
                     absl::StrCat("cannot map ", bytes, " bytes: ", error), {{"error", error}});
  }
  madvise(data, bytes, MADV_DONTDUMP);
  SharedMapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = size;
  mapping.slot_ = TakeSlot(data, bytes, writable);
  return mapping;
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, ByteCount())),
      slot_(std::exchange(other.slot_, nullptr)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(slot_, other.slot_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (slot_ == nullptr) return;
  {
    const absl::MutexLock lock(&SlotsMutex());
    slot_->end.store(0, std::memory_order_release);
  }
  munmap(data_, static_cast<size_t>(size_.value()));
}

const std::atomic<bool>& SharedMapping::DamagedFlag() const { return slot_->damaged; }

const std::atomic<bool>* SharedMapping::DamagedFlagOf(const void* address) {
  Slot* slot = FindSlot(reinterpret_cast<uintptr_t>(address));
  return slot == nullptr ? nullptr : &slot->damaged;
}

}  // namespace pageferry::transport
