#include "libs/common/library_versions.h"

#include <google/protobuf/stubs/common.h>
#include <spdlog/version.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "libs/common/version.h"

namespace grpc {
std::string Version();  // from <grpcpp/grpcpp.h>, which costs 25 s
}  // namespace grpc

namespace pageferry {

std::string VersionText(absl::string_view program,
                        const std::vector<std::pair<std::string, std::string>>& more) {
  const std::string_view commit = GitDescribe();
  std::string text = absl::StrCat(program, " ", PAGEFERRY_VERSION, " (",
                                  absl::string_view(commit.data(), commit.size()), ")");
  const auto add = [&text](absl::string_view name, absl::string_view version) {
    absl::StrAppend(&text, "\n  ", name, " ", version);
  };
  add("grpc", grpc::Version());
  add("protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION));
#ifdef ABSL_LTS_RELEASE_VERSION
  add("abseil", absl::StrCat(ABSL_LTS_RELEASE_VERSION, ".", ABSL_LTS_RELEASE_PATCH_LEVEL));
#else
  add("abseil", "head");
#endif
  add("prometheus-cpp", PAGEFERRY_PROMETHEUS_CPP_VERSION);
  add("spdlog", absl::StrCat(SPDLOG_VER_MAJOR, ".", SPDLOG_VER_MINOR, ".", SPDLOG_VER_PATCH));
  for (const auto& [name, version] : more) add(name, version);
  return text;
}

}  // namespace pageferry
