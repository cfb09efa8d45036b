#include "libs/transport/ucx_endpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/common/error.h"

namespace pageferry::transport {

struct UcxEndpoint::Message {
  UcxEndpoint* endpoint = nullptr;
  std::string header;
  std::vector<ucp_dt_iov_t> parts;
  absl::AnyInvocable<void()> sent;
};

absl::StatusOr<std::unique_ptr<UcxEndpoint>> UcxEndpoint::Create(
    UcxWorker& worker, const std::string& address, absl::AnyInvocable<void(absl::Status)> failed) {
  std::unique_ptr<UcxEndpoint> endpoint(new UcxEndpoint(worker));
  endpoint->failed_ = std::move(failed);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  // The only mode in which an endpoint can be closed by force.
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = endpoint.get();
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
    static_cast<UcxEndpoint*>(arg)->OnFailed(status);
  };
  const ucs_status_t status = ucp_ep_create(worker.handle(), &params, &endpoint->ep_);
  if (status != UCS_OK) {
    const std::string why = absl::StrCat("ucp_ep_create: ", ucs_status_string(status));
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTransport, why,
                     {{"tcp", why}});
  }
  worker.AddEndpoints(1);
  return endpoint;
}

void UcxEndpoint::OnFailed(ucs_status_t status) {
  if (std::exchange(broken_, true) || closing_) return;
  // Not in here: UCX forbids to close an endpoint in its own handler.
  worker_.Defer([this, status] {
    if (closing_) return;
    failed_(MakeError(absl::StatusCode::kUnavailable, Reason::kTransport,
                      absl::StrCat("the connection to the peer broke: ", ucs_status_string(status)),
                      {{"transport", "tcp"}}));
  });
}

void UcxEndpoint::Send(wire::MessageId id, std::string header,
                       std::vector<absl::Span<const std::byte>> parts,
                       absl::AnyInvocable<void()> sent) {
  auto* const message =
      new Message{.endpoint = this, .header = std::move(header), .sent = std::move(sent)};
  ++open_;
  if (broken_ || closing_) return Finish(message);
  message->parts.reserve(parts.size());
  for (const absl::Span<const std::byte> part : parts) {
    // UCX takes no constant bytes; it only reads them.
    message->parts.push_back({const_cast<std::byte*>(part.data()), part.size()});
  }
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  if (!message->parts.empty()) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = UCP_DATATYPE_IOV;
  }
  param.user_data = message;
  param.cb.send = [](void* request, ucs_status_t, void* user_data) {
    auto* const done = static_cast<Message*>(user_data);
    ucp_request_free(request);
    done->endpoint->Finish(done);
  };
  void* const request =
      ucp_am_send_nbx(ep_, static_cast<unsigned>(id), message->header.data(),
                      message->header.size(), message->parts.data(), message->parts.size(), &param);
  if (UCS_PTR_IS_ERR(request)) OnFailed(UCS_PTR_STATUS(request));
  if (!UCS_PTR_IS_PTR(request)) Finish(message);
}

void UcxEndpoint::Finish(Message* message) {
  absl::AnyInvocable<void()> sent = std::move(message->sent);
  delete message;
  --open_;
  if (sent) sent();
  MayBeClosed();
}

void UcxEndpoint::Close(absl::AnyInvocable<void()> closed) {
  closed_.push_back(std::move(closed));
  if (std::exchange(closing_, true)) return MayBeClosed();
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t, void* user_data) {
    auto* const endpoint = static_cast<UcxEndpoint*>(user_data);
    ucp_request_free(request);
    endpoint->ep_gone_ = true;
    endpoint->MayBeClosed();
  };
  void* const request = ucp_ep_close_nbx(ep_, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  ep_gone_ = true;
  MayBeClosed();
}

void UcxEndpoint::MayBeClosed() {
  if (!ep_gone_ || open_ > 0) return;
  if (!std::exchange(counted_out_, true)) worker_.AddEndpoints(-1);
  for (auto& closed : std::exchange(closed_, {})) worker_.Defer(std::move(closed));
}

}  // namespace pageferry::transport
