// server/main.cc -- the one binary: daemon and clients.
#include <CLI/CLI.hpp>
#include <array>

#include "server/cli/commands.h"
#include "server/version.h"

int main(int argc, char** argv) {
  CLI::App app{"Quire serves language models over gRPC.", "quire"};
  app.set_version_flag("--version", std::string("quire ") + quire::Version());
  app.require_subcommand(1);
  const std::array commands = {quire::MakeServe(app), quire::MakeGenerate(app),
                               quire::MakeBench(app), quire::MakeKernels(app),
                               quire::MakePlan(app),  quire::MakeSimulate(app),
                               quire::MakeAdmin(app), quire::MakeKey(app)};
  try {  // CLI11 throws
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return quire::Fail(quire::kExitUsage, error.what());
  }
  for (const quire::Subcommand& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return quire::kExitUsage;
}
