#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "libs/transport/imported_pool.h"
#include "tests/unit/transport/transport_fixture.h"

namespace pageferry::transport {

inline constexpr int64_t kPage = 4096;
inline constexpr int64_t kBytes = 256 * kPage;

/// Shared memory as an engine makes it: in a folder by name, or a memfd.
class EngineMemory {
 public:
  EngineMemory(const ShmFolder& folder, const std::string& name, int64_t size = kBytes)
      : EngineMemory(open(folder.File(name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600),
                     size) {}
  EngineMemory() : EngineMemory(memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING), kBytes) {}
  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;
  ~EngineMemory() { Unmap(); }

  std::byte* data() const { return data_; }
  int fd() const { return file_.fd(); }
  std::string path() const { return PathOfDescriptor(getpid(), fd()); }
  /// The second time it does nothing: what lies there then is somebody else's.
  void Unmap() const {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
    data_ = nullptr;
  }

 private:
  EngineMemory(int fd, int64_t size) : file_(fd), size_(size) {
    EXPECT_EQ(ftruncate(fd, size), 0);
    data_ = static_cast<std::byte*>(
        mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    EXPECT_NE(data_, MAP_FAILED);
  }

  const FileHandle file_;
  const int64_t size_;
  mutable std::byte* data_ = nullptr;
};

/// Of `kBytes` in the file that `shm_name` names.
inline ImportOptions ImportOf(const ShmFolder& folder, const std::string& shm_name,
                              const std::string& name = "kv") {
  ImportOptions options;
  options.agent_id = "prefill-0";
  options.name = name;
  options.size = ByteCount(kBytes);
  options.shm_name = shm_name;
  options.dir = folder.path();
  return options;
}

}  // namespace pageferry::transport
