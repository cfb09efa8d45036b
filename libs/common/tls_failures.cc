#include "libs/common/tls_failures.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "absl/strings/match.h"

namespace pageferry {
namespace {

struct Pattern {
  absl::string_view text;
  TlsFailure failure;
};

// OpenSSL's words, and those of the alerts that it gets from the other end.
constexpr std::array kPatterns = {
    Pattern{"wrong version number", TlsFailure::kClearText},
    Pattern{"http request", TlsFailure::kClearText},
    Pattern{"packet length too long", TlsFailure::kClearText},
    Pattern{"did not return a certificate", TlsFailure::kNoCertificate},
    Pattern{"certificate required", TlsFailure::kNoCertificate},
    Pattern{"certificate", TlsFailure::kBadCertificate},
    Pattern{"unknown ca", TlsFailure::kBadCertificate},
    Pattern{"no shared cipher", TlsFailure::kOldProtocol},
    Pattern{"unsupported protocol", TlsFailure::kOldProtocol},
    Pattern{"protocol version", TlsFailure::kOldProtocol},
};

std::array<std::atomic<int64_t>, kTlsFailures.size()> counts = {};

}  // namespace

absl::string_view TlsFailureName(TlsFailure failure) {
  switch (failure) {
    case TlsFailure::kClearText:
      return "clear_text";
    case TlsFailure::kNoCertificate:
      return "no_certificate";
    case TlsFailure::kBadCertificate:
      return "bad_certificate";
    case TlsFailure::kOldProtocol:
      return "old_protocol";
    case TlsFailure::kOther:
      break;
  }
  return "other";
}

absl::string_view TlsFailureText(TlsFailure failure) {
  switch (failure) {
    case TlsFailure::kClearText:
      return "the other end speaks clear text";
    case TlsFailure::kNoCertificate:
      return "the client showed no certificate";
    case TlsFailure::kBadCertificate:
      return "the certificate is expired, not valid yet, or of an authority or a name that is not "
             "accepted";
    case TlsFailure::kOldProtocol:
      return "the other end does not speak TLS 1.3";
    case TlsFailure::kOther:
      break;
  }
  return "the handshake failed";
}

std::optional<TlsFailure> TlsFailureOf(absl::string_view line) {
  if (!absl::StartsWith(line, "Handshake failed")) return std::nullopt;
  const auto found = std::ranges::find_if(
      kPatterns, [&](const Pattern& pattern) { return absl::StrContains(line, pattern.text); });
  return found == kPatterns.end() ? TlsFailure::kOther : found->failure;
}

void CountTlsFailure(TlsFailure failure) {
  counts[static_cast<size_t>(failure)].fetch_add(1, std::memory_order_relaxed);
}

int64_t TlsFailureCount(TlsFailure failure) {
  return counts[static_cast<size_t>(failure)].load(std::memory_order_relaxed);
}

}  // namespace pageferry
