#include "libs/common/flags.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "libs/common/error.h"
#include "libs/common/flag_values.h"
#include "libs/common/host_port.h"
#include "libs/common/ids.h"
#include "libs/common/status.h"

namespace pageferry {
namespace {

using Texts = std::vector<std::string>;
using Store = std::function<void()>;

struct Flag {
  std::string name;
  std::string heading;
  std::string hint;  // of the value, in --help; empty for a switch
  std::string default_text;
  std::string help;
  // Reads the texts given (one or more; all but lists look at the last) without storing.
  std::function<absl::StatusOr<Store>(const Texts&)> read;
};

struct Given {
  Texts texts;
  std::string source;  // the variable's name, or empty for the command line
};

std::string EnvironmentName(absl::string_view part, absl::string_view name) {
  const std::string joined = part.empty() ? std::string(name) : absl::StrCat(part, "_", name);
  return absl::StrCat("PAGEFERRY_",
                      absl::AsciiStrToUpper(absl::StrReplaceAll(joined, {{"-", "_"}})));
}

// "value "5x", allowed: 1s to 10m" for a bad field, the message for other errors.
std::string Describe(const absl::Status& status) {
  const ErrorMetadata metadata = MetadataOf(status);
  const auto value = metadata.find("value");
  const auto allowed = metadata.find("allowed");
  if (value == metadata.end() || allowed == metadata.end()) return std::string(status.message());
  return absl::StrCat("value ", value->second, ", allowed: ", allowed->second);
}

// Words in lines of at most 80 characters that begin with `indent`; one that is longer stands
// alone.
std::string Wrapped(absl::string_view words, absl::string_view indent) {
  constexpr size_t kColumns = 80;
  std::string text;
  std::string line;
  for (const absl::string_view word : absl::StrSplit(words, ' ', absl::SkipEmpty())) {
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&text, line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? indent : " ", word);
  }
  return absl::StrCat(text, line, "\n");
}

template <class T>
Store StoreTo(T* target, T value) {
  return [target, value = std::move(value)] { *target = value; };
}

}  // namespace

struct Flags::Impl {
  std::string program;
  std::string description;
  std::string part;
  std::string version;
  std::string heading = "Options";
  std::vector<Flag> flags;
  std::vector<std::function<absl::Status()>> checks;

  void Add(std::string name, std::string hint, std::string default_text, std::string help,
           std::function<absl::StatusOr<Store>(const Texts&)> read) {
    flags.push_back({std::move(name), heading, std::move(hint), std::move(default_text),
                     std::move(help), std::move(read)});
  }

  const Flag* Find(absl::string_view name) const {
    for (const Flag& flag : flags) {
      if (flag.name == name) return &flag;
    }
    return nullptr;
  }

  std::string Help() const {
    std::string text =
        absl::StrCat("Usage: ", program, " [--flag value]...\n\n", description, "\n");
    std::string last_heading;
    for (const Flag& flag : flags) {
      if (flag.heading != last_heading) absl::StrAppend(&text, "\n", flag.heading, ":\n");
      last_heading = flag.heading;
      absl::StrAppend(&text, "  --", flag.name, flag.hint.empty() ? "" : " ", flag.hint, "\n");
      const std::string sentence =
          absl::StrCat(flag.help, absl::EndsWith(flag.help, ".") ? "" : ".",
                       flag.default_text.empty() ? "" : " Default: ", flag.default_text,
                       flag.default_text.empty() ? "" : ".");
      absl::StrAppend(&text, Wrapped(sentence, "      "));
    }
    absl::StrAppend(
        &text,
        "\nGeneral:\n  --help\n      Print this text.\n  --version\n      Print the "
        "versions of this program and its libraries.\n\n",
        Wrapped(absl::StrCat("Each flag can also be set in the environment: --some-flag by ",
                             EnvironmentName(part, "some-flag"), " or ",
                             EnvironmentName("", "some-flag"),
                             ". The command line comes first, then the longer name."),
                ""));
    return text;
  }

  // Sorts the command line into `given`; what it cannot place goes to `errors`.
  void ReadArguments(const std::vector<std::string>& arguments, std::map<std::string, Given>& given,
                     Texts& errors) const {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& argument = arguments[i];
      if (!absl::StartsWith(argument, "--") || argument.size() == 2) {
        errors.push_back(absl::StrCat("unexpected argument \"", argument, "\""));
        continue;
      }
      const size_t equals = argument.find('=');
      const std::string name =
          argument.substr(2, equals == std::string::npos ? equals : equals - 2);
      const bool next_is_value =
          i + 1 < arguments.size() && !absl::StartsWith(arguments[i + 1], "--");
      const Flag* const flag = Find(name);
      if (flag == nullptr) {
        errors.push_back(absl::StrCat("unknown flag --", name));
        if (equals == std::string::npos && next_is_value) ++i;
      } else if (equals != std::string::npos) {
        given[name].texts.push_back(argument.substr(equals + 1));
      } else if (flag->hint.empty()) {
        given[name].texts.emplace_back("true");
      } else if (next_is_value) {
        given[name].texts.push_back(arguments[++i]);
      } else {
        errors.push_back(absl::StrCat("--", name, ": its value is missing"));
      }
    }
  }

  void ReadEnvironment(const Environment& environment, std::map<std::string, Given>& given) const {
    for (const Flag& flag : flags) {
      if (given.contains(flag.name)) continue;
      for (const std::string& variable :
           {EnvironmentName(part, flag.name), EnvironmentName("", flag.name)}) {
        const char* const value = environment(variable.c_str());
        if (value == nullptr || *value == '\0') continue;
        given[flag.name] = {{value}, variable};
        break;
      }
    }
  }
};

Flags::Flags(std::string program, std::string description, std::string part, std::string version)
    : impl_(std::make_unique<Impl>()) {
  impl_->program = std::move(program);
  impl_->description = std::move(description);
  impl_->part = std::move(part);
  impl_->version = std::move(version);
}

Flags::~Flags() = default;

void Flags::Group(std::string heading) { impl_->heading = std::move(heading); }

void Flags::String(std::string name, std::string* target, std::string help) {
  impl_->Add(std::move(name), "TEXT", *target, std::move(help),
             [target](const Texts& texts) -> absl::StatusOr<Store> {
               return StoreTo(target, texts.back());
             });
}

void Flags::Int(std::string name, int64_t* target, int64_t min, int64_t max, std::string help) {
  impl_->Add(std::move(name), "N", absl::StrCat(*target), std::move(help),
             [target, min, max](const Texts& texts) -> absl::StatusOr<Store> {
               int64_t value = 0;
               if (!absl::SimpleAtoi(texts.back(), &value) || value < min || value > max) {
                 return InvalidField("", absl::StrCat("\"", texts.back(), "\""),
                                     absl::StrCat("a whole number from ", min, " to ", max));
               }
               return StoreTo(target, value);
             });
}

void Flags::Duration(std::string name, absl::Duration* target, absl::Duration min,
                     absl::Duration max, std::string help) {
  impl_->Add(std::move(name), "DURATION", absl::FormatDuration(*target), std::move(help),
             [target, min, max](const Texts& texts) -> absl::StatusOr<Store> {
               const auto value = ParseDurationFlag(texts.back());
               if (!value.ok() || *value < min || *value > max) {
                 return InvalidField(
                     "", absl::StrCat("\"", texts.back(), "\""),
                     absl::StrCat("a duration such as 3s or 250ms, from ",
                                  absl::FormatDuration(min), " to ", absl::FormatDuration(max)));
               }
               return StoreTo(target, *value);
             });
}

void Flags::Bytes(std::string name, ByteCount* target, ByteCount min, ByteCount max,
                  std::string help) {
  impl_->Add(std::move(name), "BYTES", FormatBytes(*target), std::move(help),
             [target, min, max](const Texts& texts) -> absl::StatusOr<Store> {
               const auto value = ParseBytesFlag(texts.back());
               if (!value.ok() || *value < min || *value > max) {
                 return InvalidField("", absl::StrCat("\"", texts.back(), "\""),
                                     absl::StrCat("a size such as 64MiB, from ", FormatBytes(min),
                                                  " to ", FormatBytes(max)));
               }
               return StoreTo(target, *value);
             });
}

void Flags::Bool(std::string name, bool* target, std::string help) {
  impl_->Add(std::move(name), "", *target ? "true" : "false", std::move(help),
             [target](const Texts& texts) -> absl::StatusOr<Store> {
               bool value = false;
               const std::string text = absl::AsciiStrToLower(texts.back());
               if (text == "on" || text == "off") return StoreTo(target, text == "on");
               if (!absl::SimpleAtob(text, &value)) {
                 return InvalidField("", absl::StrCat("\"", texts.back(), "\""), "true, false");
               }
               return StoreTo(target, value);
             });
}

void Flags::Choice(std::string name, std::string* target, std::vector<std::string> allowed,
                   std::string help) {
  const std::string list = absl::StrJoin(allowed, ", ");
  std::string hint = absl::StrJoin(allowed, "|");
  impl_->Add(
      std::move(name), std::move(hint), *target, std::move(help),
      [target, allowed = std::move(allowed), list](const Texts& texts) -> absl::StatusOr<Store> {
        for (const std::string& one : allowed) {
          if (texts.back() == one) return StoreTo(target, one);
        }
        return InvalidField("", absl::StrCat("\"", texts.back(), "\""), list);
      });
}

void Flags::List(std::string name, std::vector<std::string>* target, std::string help) {
  impl_->Add(std::move(name), "A,B,...", absl::StrJoin(*target, ","), std::move(help),
             [target](const Texts& texts) -> absl::StatusOr<Store> {
               std::vector<std::string> items;
               for (const std::string& text : texts) {
                 for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
                   items.emplace_back(absl::StripAsciiWhitespace(item));
                 }
               }
               return StoreTo(target, std::move(items));
             });
}

void Flags::Address(std::string name, std::string* target, std::vector<std::string> words,
                    std::string help) {
  const std::string allowed = absl::StrJoin(
      words, "",
      [](std::string* out, const std::string& word) { absl::StrAppend(out, word, ", "); });
  impl_->Add(
      std::move(name), absl::StrJoin(words, "|") + (words.empty() ? "" : "|") + "HOST:PORT",
      *target, std::move(help),
      [target, words = std::move(words), allowed](const Texts& texts) -> absl::StatusOr<Store> {
        const std::string& text = texts.back();
        const bool is_word = std::ranges::find(words, text) != words.end();
        if (!is_word && !ParseHostPort(text).ok()) {
          return InvalidField("", absl::StrCat("\"", text, "\""),
                              absl::StrCat(allowed, "host:port, with IPv6 in brackets"));
        }
        return StoreTo(target, text);
      });
}

void Flags::Custom(std::string name, std::string default_text,
                   std::function<absl::Status(absl::string_view)> check,
                   std::function<void(absl::string_view)> store, std::string help) {
  impl_->Add(std::move(name), "VALUE", std::move(default_text), std::move(help),
             [check = std::move(check),
              store = std::move(store)](const Texts& texts) -> absl::StatusOr<Store> {
               PAGEFERRY_RETURN_IF_ERROR(check(texts.back()));
               return Store([store, text = texts.back()] { store(text); });
             });
}

void Flags::Check(std::function<absl::Status()> check) {
  impl_->checks.push_back(std::move(check));
}

FlagsOutcome Flags::Parse(const std::vector<std::string>& arguments,
                          const Environment& environment) {
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") return {0, impl_->Help(), ""};
    if (argument == "--version") return {0, impl_->version + "\n", ""};
  }
  Texts errors;
  std::map<std::string, Given> given;
  impl_->ReadArguments(arguments, given, errors);
  impl_->ReadEnvironment(environment, given);
  std::vector<Store> stores;
  for (const Flag& flag : impl_->flags) {
    const auto found = given.find(flag.name);
    if (found == given.end()) continue;
    auto store = flag.read(found->second.texts);
    if (store.ok()) {
      stores.push_back(*std::move(store));
    } else {
      const std::string& source = found->second.source;
      errors.push_back(absl::StrCat("--", flag.name,
                                    source.empty() ? "" : absl::StrCat(" (from ", source, ")"),
                                    ": ", Describe(store.status())));
    }
  }
  if (errors.empty()) {
    for (const Store& store : stores) store();
    for (const auto& check : impl_->checks) {
      if (const absl::Status status = check(); !status.ok()) {
        errors.emplace_back(status.message());
      }
    }
  }
  if (errors.empty()) return {};
  std::string text;
  for (const std::string& error : errors) absl::StrAppend(&text, impl_->program, ": ", error, "\n");
  absl::StrAppend(&text, impl_->program, ": bad configuration (", errors.size(),
                  errors.size() == 1 ? " error" : " errors", "), see --help\n");
  return {2, "", text};
}

std::optional<int> Flags::ParseMain(int argc, const char* const* argv) {
  const FlagsOutcome outcome = Parse(
      std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc),
      [](const char* name) -> const char* { return std::getenv(name); });  // NOLINT: before threads
  std::cout << outcome.out << std::flush;
  std::cerr << outcome.err;
  return outcome.exit_code;
}

}  // namespace pageferry
