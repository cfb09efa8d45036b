#pragma once

namespace pageferry {

/// Sends what gRPC itself logs through `Log`, area "grpc", so that stderr holds lines of one form
/// only: gRPC's errors as warnings (they tell of a peer or a network more often than of us), the
/// rest as verbose. A failed TLS handshake is counted (tls_failures.h) and written as such,
/// area "tls"; gRPC does not tell whose it was. At most 20 lines at once and then one a second;
/// GRPC_VERBOSITY still filters first. For the process; call once in main, before the first server
/// or channel.
void InstallGrpcLog();

}  // namespace pageferry
