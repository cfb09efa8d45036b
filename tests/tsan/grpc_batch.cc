// Makes the order of gRPC's callbacks visible to ThreadSanitizer (tsan lane only).
//
// Debian's gRPC is not instrumented and hands completions from thread to thread through atomics, so
// TSan does not see that OnReadDone comes after the StartRead that asked for it, and calls a
// reactor's own fields races. Every operation passes grpc_call_start_batch with a tag; for the
// callback interface the tag holds the function to run. The definition here comes before the shared
// library's: it releases the tag at the start and acquires it before the function runs. Order
// between one operation's start and its completion becomes visible, and that between all calls and
// the end of a server, and nothing more: two reactions that race with each other are still
// reported.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <link.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace {

using Functor = grpc_completion_queue_functor;
using Run = void (*)(Functor*, int);

// A lock that TSan cannot see (this file is not instrumented), else it would order our threads.
class HiddenLock {
 public:
  HiddenLock() {
    while (flag_.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~HiddenLock() { flag_.clear(std::memory_order_release); }

 private:
  static inline std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
};

int AddCode(dl_phdr_info* info, std::size_t, void* ranges) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type == PT_LOAD && (header.p_flags & PF_X) != 0) {
      const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
      static_cast<std::vector<Range>*>(ranges)->push_back({begin, begin + header.p_memsz});
    }
  }
  return 0;
}

// Tells a functor, whose first word is a function, from the tags of the other interfaces, whose
// first word is a pointer to data (a virtual table).
bool StartsWithFunction(const Functor* tag) {
  static const auto* const code = [] {
    auto* ranges = new std::vector<Range>;
    dl_iterate_phdr(&AddCode, ranges);
    return ranges;
  }();
  const auto address = reinterpret_cast<std::uintptr_t>(tag->functor_run);
  for (const Range& range : *code) {
    if (address >= range.begin && address < range.end) return true;
  }
  return false;
}

std::unordered_map<const Functor*, Run>& Functions() {
  static auto* const functions = new std::unordered_map<const Functor*, Run>;
  return *functions;
}

char calls_ended;  // only its address counts

void AcquireAndRun(Functor* functor, int ok) {
  Run run = nullptr;
  {
    const HiddenLock lock;
    run = Functions().at(functor);
  }
  __tsan_acquire(functor);
  run(functor, ok);
}

}  // namespace

extern "C" grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count,
                                                 void* tag, void* reserved) {
  const int kept_errno = errno;
  static auto* const real =
      reinterpret_cast<decltype(&grpc_call_start_batch)>(dlsym(RTLD_NEXT, "grpc_call_start_batch"));
  auto* functor = static_cast<Functor*>(tag);
  if (functor != nullptr && StartsWithFunction(functor)) {
    if (functor->functor_run != &AcquireAndRun) {
      const HiddenLock lock;
      Functions()[functor] = functor->functor_run;
      functor->functor_run = &AcquireAndRun;
    }
    __tsan_release(functor);
  }
  errno = kept_errno;
  return real(call, ops, count, tag, reserved);
}

// The end of a server comes after the end of each of its calls, which only gRPC counts: a call's
// OnDone runs before its reference goes.
extern "C" void grpc_call_unref(grpc_call* call) {
  static auto* const real =
      reinterpret_cast<decltype(&grpc_call_unref)>(dlsym(RTLD_NEXT, "grpc_call_unref"));
  __tsan_release(&calls_ended);
  real(call);
}

extern "C" void grpc_server_destroy(grpc_server* server) {
  static auto* const real =
      reinterpret_cast<decltype(&grpc_server_destroy)>(dlsym(RTLD_NEXT, "grpc_server_destroy"));
  real(server);
  __tsan_acquire(&calls_ended);
}
