#pragma once

#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

namespace pageferry::bench {

/// What the kernel's loopback gives without any library: one TCP connection, one thread that sends
/// scattered pages by sendmsg, and the caller's, which receives straight into scattered pages. Both
/// know the order; nothing is checked.
class RawSocket {
 public:
  /// Where the pages are and where they go.
  using Page = std::pair<const std::byte*, std::byte*>;

  RawSocket();
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;
  ~RawSocket();

  /// Returns when all have arrived.
  void Copy(const std::vector<Page>& pages, size_t page_bytes);

 private:
  int sending_ = -1;
  int receiving_ = -1;
};

}  // namespace pageferry::bench
