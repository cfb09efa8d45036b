#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace pageferry::ctl {

/// Keeps the order of the fields.
using Json = nlohmann::ordered_json;

/// The canonical JSON of `message` with the names of the proto and every plain field, also where it
/// has its default. int64 are strings ("7"), since JSON numbers lose digits above 2^53; durations
/// are strings ("1.5s"); enums are their names.
Json ToJson(const google::protobuf::Message& message);

/// A whole document for stdout.
std::string Document(const Json& json);

}  // namespace pageferry::ctl
