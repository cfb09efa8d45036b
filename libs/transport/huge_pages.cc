#include "libs/transport/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace pageferry::transport {
namespace {

// Not in Debian 12's headers of the C library.
constexpr int kMadvCollapse = 25;

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// "begin-end ..." in hexadecimal: the line that opens the mapping with `address` in it.
bool Holds(absl::string_view line, uint64_t address) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(line.substr(0, line.find(' ')), absl::MaxSplits('-', 1));
  uint64_t begin = 0;
  uint64_t end = 0;
  return absl::SimpleHexAtoi(parts.first, &begin) && absl::SimpleHexAtoi(parts.second, &end) &&
         address >= begin && address < end;
}

// The lines of a mapping begin with its addresses; those below it with a key and a colon.
bool OpensMapping(absl::string_view line) {
  return absl::StrContains(line.substr(0, line.find(' ')), '-');
}

}  // namespace

ByteCount FindInSmaps(absl::string_view smaps, const void* address, absl::string_view key) {
  const auto wanted = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address));
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(smaps, '\n')) {
    if (OpensMapping(line)) {
      if (inside) break;
      inside = Holds(line, wanted);
    } else if (inside && absl::StartsWith(line, key)) {
      const std::vector<absl::string_view> words =
          absl::StrSplit(line.substr(key.size()), ' ', absl::SkipEmpty());
      int64_t kilobytes = 0;
      if (words.empty() || !absl::SimpleAtoi(words[0], &kilobytes)) break;
      return ByteCount(kilobytes) * 1024;
    }
  }
  return {};
}

HugePagesGot UseHugePages(std::byte* data, ByteCount size) {
  const auto bytes = static_cast<size_t>(size.value());
  // For the pages that come later, should the file ever lose some.
  madvise(data, bytes, MADV_HUGEPAGE);
  const int failed = madvise(data, bytes, kMadvCollapse) != 0 ? errno : 0;
  HugePagesGot got;
  got.bytes = std::min(size, FindInSmaps(ReadFile("/proc/self/smaps"), data, "ShmemPmdMapped:"));
  if (got.bytes == size) return got;
  std::string setting = ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  setting.erase(std::min(setting.find_last_not_of(" \n") + 1, setting.size()));
  got.why = absl::StrCat("the host gave ", got.bytes.value(), " of ", size.value(),
                         " bytes on huge pages (", failed == 0 ? "no error" : std::strerror(failed),
                         "; shmem_enabled is ", setting.empty() ? "not there" : setting, ")");
  return got;
}

}  // namespace pageferry::transport
