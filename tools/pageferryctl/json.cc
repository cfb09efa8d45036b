#include "tools/pageferryctl/json.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "google/protobuf/util/json_util.h"

namespace pageferry::ctl {

Json ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  // It can refuse only what a peer made up, such as a duration out of range.
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) return {{"unprintable", status.ToString()}};
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string Document(const Json& json) {
  return absl::StrCat(json.dump(2, ' ', false, Json::error_handler_t::replace), "\n");
}

}  // namespace pageferry::ctl
