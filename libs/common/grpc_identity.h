#pragma once

#include <string>

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace pageferry {

/// Who calls, as the certificate says that it showed: its first URI among the subject's alternative
/// names (design section 9), else its first DNS name. Empty in clear text, and where clients need
/// no certificate.
std::string CallerIdentity(const grpc::ServerContextBase& context);

}  // namespace pageferry
