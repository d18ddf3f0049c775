// server/cli/key.cc -- `quire key`: makes an API key and the entry for the daemon's key file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "server/access/api_key.h"
#include "server/cli/commands.h"

namespace quire {
namespace {

constexpr const char* kHelp =
    "The key is printed on standard error, once: nothing keeps it. The entry goes to standard\n"
    "output:  quire key alice --tenant team-a >> keys.yaml";

struct KeyArguments {
  ApiKey key;
  std::optional<int32_t> priority;
  std::optional<int32_t> max_priority;
  bool from_stdin = false;
};

int RunKey(KeyArguments& a) {
  a.key.priority = a.priority;
  a.key.max_priority = a.max_priority;
  std::string secret;
  if (a.from_stdin) {
    std::getline(std::cin, secret);
    constexpr size_t kMinBytes = 20;  // shorter ones could be guessed from their hash
    if (secret.size() < kMinBytes) {
      return Fail(kExitUsage, fmt::format("the key has {} bytes, must have at least {}",
                                          secret.size(), kMinBytes)
                                  .c_str());
    }
  } else {
    secret = NewSecret();
  }
  a.key.hash = HashOfKey(secret);
  const std::string entry = ToYaml(a.key);
  // The daemon's own reader says what it would not take.
  const auto read = ParseKeys(entry, "key");
  if (!read.ok()) return Fail(kExitUsage, Message(read.status()).c_str());
  if (!a.from_stdin) fmt::print(stderr, "{}\n", secret);
  fmt::print("{}", entry);
  return 0;
}

}  // namespace

Subcommand MakeKey(CLI::App& parent) {
  auto a = std::make_shared<KeyArguments>();
  CLI::App* const app = parent.add_subcommand("key", "make an API key for the file api_key_file");
  app->footer(kHelp);
  app->add_option("name", a->key.name, "for logs and messages")->required();
  app->add_option("--tenant", a->key.tenant, "of all its requests");
  app->add_option("--priority", a->priority, "of all its requests");
  app->add_option("--max-priority", a->max_priority, "the highest that a request may ask for");
  app->add_option("--requests-per-minute", a->key.requests_per_minute, "0: no limit");
  app->add_option("--tokens-per-minute", a->key.tokens_per_minute,
                  "of prompts and outputs together; 0: no limit");
  app->add_flag("--admin", a->key.admin, "may also call quire.v1.Admin");
  app->add_flag("--stdin", a->from_stdin, "read a key that exists already from standard input");
  return {app, [a] { return RunKey(*a); }};
}

}  // namespace quire
