#pragma once

#include <cstddef>

#include "libs/common/ids.h"
#include "libs/transport/huge_pages.h"
#include "libs/transport/seal_table.h"
#include "libs/transport/transport.h"

namespace pageferry::transport {

/// A pool in memory of the host, whoever owns that. Thread-safe but for destruction.
class HostPool {
 public:
  virtual ~HostPool() = default;

  /// Where data begins, and how much of it there is.
  virtual std::byte* data() const = 0;
  virtual ByteCount size() const = 0;
  /// How peers map it; the mapping with header and seals is how the engine does.
  virtual const LocalMapping& local() const = 0;
  virtual SealTable& seals() = 0;
  /// True when this agent took over what an earlier one had left.
  virtual bool adopted() const = 0;
  /// True when the engine owns the memory.
  virtual bool imported() const = 0;
  /// False where the engine only gave leave to read.
  virtual bool writable() const = 0;
  /// True when somebody cut the file: the pool is lost and should be released.
  virtual bool damaged() const = 0;
  virtual const HugePagesGot& huge() const = 0;
};

}  // namespace pageferry::transport
