#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <vector>

#include "libs/transport/memlock.h"

namespace pageferry {

/// False under the sanitizers, which answer mlock() themselves and lock nothing.
inline bool MlockIsReal() {
  constexpr size_t kBytes = 64 << 10;
  std::vector<std::byte> memory(kBytes);
  const ByteCount before = transport::ReadMemlock().locked;
  const bool real = mlock(memory.data(), kBytes) == 0 && transport::ReadMemlock().locked != before;
  munlock(memory.data(), kBytes);
  return real;
}

}  // namespace pageferry
