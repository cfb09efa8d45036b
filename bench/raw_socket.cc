#include "bench/raw_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace pageferry::bench {
namespace {

constexpr size_t kPagesOfACall = 64;

void Check(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(1);
}

/// Moves all bytes of `parts` by `call`, which may do fewer at a time.
template <class Call>
void MoveAll(std::vector<iovec> parts, Call call) {
  size_t first = 0;
  while (first < parts.size()) {
    msghdr message = {};
    message.msg_iov = &parts[first];
    message.msg_iovlen = std::min(kPagesOfACall, parts.size() - first);
    const ssize_t moved = call(&message);
    if (moved < 0 && errno == EINTR) continue;
    Check(moved > 0, "socket");
    auto left = static_cast<size_t>(moved);
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (left == 0) continue;
    parts[first].iov_base = static_cast<std::byte*>(parts[first].iov_base) + left;
    parts[first].iov_len -= left;
  }
}

}  // namespace

RawSocket::RawSocket() {
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  Check(bind(listening, any, size) == 0 && listen(listening, 1) == 0, "listen");
  Check(getsockname(listening, any, &size) == 0, "getsockname");
  sending_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Check(connect(sending_, any, size) == 0, "connect");
  receiving_ = accept(listening, nullptr, nullptr);
  Check(receiving_ >= 0, "accept");
  close(listening);
  const int on = 1;
  setsockopt(sending_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

RawSocket::~RawSocket() {
  close(sending_);
  close(receiving_);
}

void RawSocket::Copy(const std::vector<Page>& pages, size_t page_bytes) {
  std::vector<iovec> from;
  std::vector<iovec> to;
  from.reserve(pages.size());
  to.reserve(pages.size());
  for (const auto& [source, target] : pages) {
    from.push_back({const_cast<std::byte*>(source), page_bytes});
    to.push_back({target, page_bytes});
  }
  std::thread sender([&] {
    MoveAll(from, [this](const msghdr* message) { return sendmsg(sending_, message, 0); });
  });
  MoveAll(to, [this](msghdr* message) { return recvmsg(receiving_, message, 0); });
  sender.join();
}

}  // namespace pageferry::bench
