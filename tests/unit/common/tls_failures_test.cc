#include "libs/common/tls_failures.h"

#include <optional>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace pageferry {
namespace {

TEST(TlsFailures, AreReadFromTheLinesThatGrpcWrites) {
  struct Row {
    const char* why;
    TlsFailure failure;
  };
  for (const Row& row : {
           Row{"0A00010B:SSL routines::wrong version number", TlsFailure::kClearText},
           Row{"0A00009C:SSL routines::http request", TlsFailure::kClearText},
           Row{"0A0000C7:SSL routines::peer did not return a certificate",
               TlsFailure::kNoCertificate},
           Row{"0A00045C:SSL routines::tlsv13 alert certificate required",
               TlsFailure::kNoCertificate},
           Row{"0A000086:SSL routines::certificate verify failed", TlsFailure::kBadCertificate},
           Row{"0A000415:SSL routines::sslv3 alert certificate expired",
               TlsFailure::kBadCertificate},
           Row{"0A000418:SSL routines::tlsv1 alert unknown ca", TlsFailure::kBadCertificate},
           Row{"0A0000C1:SSL routines::no shared cipher", TlsFailure::kOldProtocol},
           Row{"0A000102:SSL routines::unsupported protocol", TlsFailure::kOldProtocol},
           Row{"something new", TlsFailure::kOther},
       }) {
    const std::string line =
        std::string("Handshake failed with fatal error SSL_ERROR_SSL: error:") + row.why + ".";
    EXPECT_EQ(TlsFailureOf(line), row.failure) << line;
  }
  EXPECT_EQ(TlsFailureOf("connection reset: certificate"), std::nullopt);
  EXPECT_EQ(TlsFailureOf(""), std::nullopt);
}

TEST(TlsFailures, EachIsCountedUnderItsOwnName) {
  const int64_t before = TlsFailureCount(TlsFailure::kBadCertificate);
  CountTlsFailure(TlsFailure::kBadCertificate);
  EXPECT_EQ(TlsFailureCount(TlsFailure::kBadCertificate), before + 1);
  std::set<absl::string_view> names;
  for (const TlsFailure failure : kTlsFailures) names.insert(TlsFailureName(failure));
  EXPECT_EQ(names.size(), kTlsFailures.size());
}

}  // namespace
}  // namespace pageferry
