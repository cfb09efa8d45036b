#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace pageferry {

/// Why a TLS handshake failed, as far as OpenSSL tells.
enum class TlsFailure : uint8_t {
  kClearText,       ///< the other end does not speak TLS
  kNoCertificate,   ///< a client showed none
  kBadCertificate,  ///< expired, not valid yet, of another authority, or of another name
  kOldProtocol,     ///< below TLS 1.3
  kOther,
};
inline constexpr std::array kTlsFailures = {TlsFailure::kClearText, TlsFailure::kNoCertificate,
                                            TlsFailure::kBadCertificate, TlsFailure::kOldProtocol,
                                            TlsFailure::kOther};

/// "clear_text", "no_certificate"...: label values.
absl::string_view TlsFailureName(TlsFailure failure);
/// What it means, for people.
absl::string_view TlsFailureText(TlsFailure failure);

/// Reads a line of gRPC's log: it tells of failed handshakes nowhere else. Nothing for other lines.
std::optional<TlsFailure> TlsFailureOf(absl::string_view line);

/// Counts of this process. Thread-safe.
void CountTlsFailure(TlsFailure failure);
int64_t TlsFailureCount(TlsFailure failure);

}  // namespace pageferry
