#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/flag_values.h"
#include "libs/common/ids.h"

namespace pageferry {

/// What main should do after Parse.
struct FlagsOutcome {
  /// Not set: go on. 0: help or version was asked for. 2: the configuration is bad.
  std::optional<int> exit_code;
  std::string out;  ///< for stdout
  std::string err;  ///< for stderr; every bad value, one a line
};

/// The configuration of one program: flags, each with a fallback in the environment.
///
/// Thread-compatible. Borrows the targets, which hold the defaults before Parse and the result
/// after it; they are set only when each flag is good alone (a Check may still fail then: exit). A
/// flag `--lease-ttl` of the part "bootstrap" falls back to PAGEFERRY_BOOTSTRAP_LEASE_TTL, then to
/// PAGEFERRY_LEASE_TTL; an empty variable counts as not set. Name no flag `port`, `service-host` or
/// `service-port`: Kubernetes sets such variables for a Service called pageferry-bootstrap.
class Flags {
 public:
  /// `part` is lower case, such as "bootstrap". `version` is the whole text for --version.
  Flags(std::string program, std::string description, std::string part, std::string version);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// The heading in --help of what is added from here on.
  void Group(std::string heading);

  /// `name` is without dashes. Bounds are inclusive.
  void String(std::string name, std::string* target, std::string help);
  void Int(std::string name, int64_t* target, int64_t min, int64_t max, std::string help);
  void Duration(std::string name, absl::Duration* target, absl::Duration min, absl::Duration max,
                std::string help);
  void Bytes(std::string name, ByteCount* target, ByteCount min, ByteCount max, std::string help);
  /// `--name`, or `--name=true|false` (also 1, 0, yes, no, on, off).
  void Bool(std::string name, bool* target, std::string help);
  /// One of `allowed`.
  void Choice(std::string name, std::string* target, std::vector<std::string> allowed,
              std::string help);
  /// Comma-separated and repeatable. Given at all, it replaces the default.
  void List(std::string name, std::vector<std::string>* target, std::string help);
  /// host:port, or one of `words`.
  void Address(std::string name, std::string* target, std::vector<std::string> words,
               std::string help);
  /// Anything else: `check` reads the text and changes nothing, `store` takes it when all flags are
  /// good. `default_text` is for --help.
  void Custom(std::string name, std::string default_text,
              std::function<absl::Status(absl::string_view)> check,
              std::function<void(absl::string_view)> store, std::string help);

  /// A condition on several flags, asked after the targets were set. Errors of all are reported.
  void Check(std::function<absl::Status()> check);

  /// Reads the arguments, without the program's name: `--name value`, `--name=value`; of a flag
  /// that is given twice the last counts. Anything else is refused.
  using Environment = std::function<const char*(const char* name)>;
  FlagsOutcome Parse(const std::vector<std::string>& arguments, const Environment& environment);

  /// Parse of main's arguments and the process's environment, printed. The exit code, if main
  /// should end now.
  std::optional<int> ParseMain(int argc, const char* const* argv);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pageferry
