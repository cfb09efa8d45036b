#include "libs/common/grpc_identity.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/server_context.h>

namespace pageferry {

std::string CallerIdentity(const grpc::ServerContextBase& context) {
  const auto auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) return "";
  for (const char* const name : {GRPC_PEER_URI_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
    const auto values = auth->FindPropertyValues(name);
    if (!values.empty()) return {values.front().data(), values.front().size()};
  }
  return "";
}

}  // namespace pageferry
