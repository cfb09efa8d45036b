// Makes the locks of Debian's Abseil visible to ThreadSanitizer (tsan lane only).
//
// The library is not instrumented, so TSan sees neither absl::Mutex nor absl::Notification and
// would call every field behind them a race. A program's own definitions come before a shared
// library's: the ones below tell TSan what happens and then call the library's. gRPC and Debian's
// other users of Abseil go through them too. Left alone: functions that only call one of these
// inside (the ones that take a timeout and make a deadline of it).
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

#define PAGEFERRY_TEXT_OF(x) #x
#define PAGEFERRY_TEXT(x) PAGEFERRY_TEXT_OF(x)

namespace {

constexpr unsigned kWrite = 0;
constexpr unsigned kRead = __tsan_mutex_read_lock;
constexpr unsigned kTry = __tsan_mutex_try_lock;

// Abseil's locks leave errno alone and gRPC counts on it (connect, lock, then a look at errno);
// TSan and dlsym do not.
class KeepErrno {
 public:
  KeepErrno() : errno_(errno) {}
  ~KeepErrno() { errno = errno_; }

 private:
  int errno_;
};

// The library's function; `mangled` is its name after the inline namespace.
template <typename Function>
Function* Real(const char* mangled) {
  const std::string inline_namespace = PAGEFERRY_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string name = "_ZN" + std::string(mangled[0] == 'K' ? "K" : "") + "4absl" +
                           std::to_string(inline_namespace.size()) + inline_namespace +
                           (mangled[0] == 'K' ? mangled + 1 : mangled);
  void* found = dlsym(RTLD_NEXT, name.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "absl_sync.cc: Abseil has no symbol %s\n", name.c_str());
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

// Runs `lock`, which takes `mutex` (for a try: when it returns true).
template <typename Lock>
auto Locking(absl::Mutex* mutex, unsigned flags, Lock lock) {
  __tsan_mutex_pre_lock(mutex, flags);
  if constexpr (std::is_void_v<decltype(lock())>) {
    lock();
    __tsan_mutex_post_lock(mutex, flags, 0);
  } else {
    const bool result = lock();
    const bool failed = (flags & kTry) != 0 && !result;
    __tsan_mutex_post_lock(mutex, failed ? flags | __tsan_mutex_try_lock_failed : flags, 0);
    return result;
  }
}

// Runs `wait`, which gives `mutex` up and has it again when it returns.
template <typename Wait>
auto Waiting(absl::Mutex* mutex, Wait wait) {
  __tsan_mutex_pre_unlock(mutex, kWrite);
  __tsan_mutex_post_unlock(mutex, kWrite);
  return Locking(mutex, kWrite, wait);
}

// Notification::HasBeenNotified() is inline and reads the flag behind the mutex.
void* FlagOf(const absl::Notification* notification) {
  const char* flag = reinterpret_cast<const char*>(notification) + sizeof(absl::Mutex);
  return const_cast<char*>(flag);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

Mutex::~Mutex() {
  const KeepErrno keep_errno;
  static auto* const real = Real<void(Mutex*)>("5MutexD1Ev");
  real(this);
  __tsan_mutex_destroy(this, __tsan_mutex_not_static);
}

void Mutex::Lock() {
  const KeepErrno keep_errno;
  static auto* const real = Real<void(Mutex*)>("5Mutex4LockEv");
  Locking(this, kWrite, [&] { real(this); });
}

bool Mutex::TryLock() {
  const KeepErrno keep_errno;
  static auto* const real = Real<bool(Mutex*)>("5Mutex7TryLockEv");
  return Locking(this, kTry, [&] { return real(this); });
}

void Mutex::Unlock() {
  const KeepErrno keep_errno;
  static auto* const real = Real<void(Mutex*)>("5Mutex6UnlockEv");
  __tsan_mutex_pre_unlock(this, kWrite);
  real(this);
  __tsan_mutex_post_unlock(this, kWrite);
}

void Mutex::ReaderLock() {
  const KeepErrno keep_errno;
  static auto* const real = Real<void(Mutex*)>("5Mutex10ReaderLockEv");
  Locking(this, kRead, [&] { real(this); });
}

bool Mutex::ReaderTryLock() {
  const KeepErrno keep_errno;
  static auto* const real = Real<bool(Mutex*)>("5Mutex13ReaderTryLockEv");
  return Locking(this, kRead | kTry, [&] { return real(this); });
}

void Mutex::ReaderUnlock() {
  const KeepErrno keep_errno;
  static auto* const real = Real<void(Mutex*)>("5Mutex12ReaderUnlockEv");
  __tsan_mutex_pre_unlock(this, kRead);
  real(this);
  __tsan_mutex_post_unlock(this, kRead);
}

void Mutex::Await(const Condition& condition) {
  const KeepErrno keep_errno;
  using Function = void(Mutex*, const Condition&);
  static auto* const real = Real<Function>("5Mutex5AwaitERKNS0_9ConditionE");
  Waiting(this, [&] { real(this, condition); });
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  const KeepErrno keep_errno;
  using Function = bool(Mutex*, const Condition&, Time);
  static auto* const real = Real<Function>("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  return Waiting(this, [&] { return real(this, condition, deadline); });
}

void Mutex::LockWhen(const Condition& condition) {
  const KeepErrno keep_errno;
  using Function = void(Mutex*, const Condition&);
  static auto* const real = Real<Function>("5Mutex8LockWhenERKNS0_9ConditionE");
  Locking(this, kWrite, [&] { real(this, condition); });
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  const KeepErrno keep_errno;
  using Function = bool(Mutex*, const Condition&, Time);
  static auto* const real =
      Real<Function>("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  return Locking(this, kWrite, [&] { return real(this, condition, deadline); });
}

void Mutex::ReaderLockWhen(const Condition& condition) {
  const KeepErrno keep_errno;
  using Function = void(Mutex*, const Condition&);
  static auto* const real = Real<Function>("5Mutex14ReaderLockWhenERKNS0_9ConditionE");
  Locking(this, kRead, [&] { real(this, condition); });
}

bool Mutex::ReaderLockWhenWithDeadline(const Condition& condition, Time deadline) {
  const KeepErrno keep_errno;
  using Function = bool(Mutex*, const Condition&, Time);
  static auto* const real =
      Real<Function>("5Mutex26ReaderLockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  return Locking(this, kRead, [&] { return real(this, condition, deadline); });
}

void CondVar::Wait(Mutex* mutex) {
  const KeepErrno keep_errno;
  using Function = void(CondVar*, Mutex*);
  static auto* const real = Real<Function>("7CondVar4WaitEPNS0_5MutexE");
  Waiting(mutex, [&] { real(this, mutex); });
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  const KeepErrno keep_errno;
  using Function = bool(CondVar*, Mutex*, Time);
  static auto* const real = Real<Function>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  return Waiting(mutex, [&] { return real(this, mutex, deadline); });
}

// A waiter that comes after the notice takes no lock, hence the edges of their own.
void Notification::Notify() {
  const KeepErrno keep_errno;
  static auto* const real = Real<void(Notification*)>("12Notification6NotifyEv");
  __tsan_release(this);
  __tsan_release(FlagOf(this));
  real(this);
}

void Notification::WaitForNotification() const {
  const KeepErrno keep_errno;
  static auto* const real =
      Real<void(const Notification*)>("K12Notification19WaitForNotificationEv");
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  const KeepErrno keep_errno;
  using Function = bool(const Notification*, Duration);
  static auto* const real =
      Real<Function>("K12Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = real(this, timeout);
  __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  const KeepErrno keep_errno;
  using Function = bool(const Notification*, Time);
  static auto* const real =
      Real<Function>("K12Notification31WaitForNotificationWithDeadlineENS0_4TimeE");
  const bool notified = real(this, deadline);
  __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  const KeepErrno keep_errno;
  static auto* const real = Real<bool(BlockingCounter*)>("15BlockingCounter14DecrementCountEv");
  __tsan_release(this);
  return real(this);
}

void BlockingCounter::Wait() {
  const KeepErrno keep_errno;
  static auto* const real = Real<void(BlockingCounter*)>("15BlockingCounter4WaitEv");
  real(this);
  __tsan_acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
