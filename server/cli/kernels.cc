// server/cli/kernels.cc -- `quire kernels`: what this build and this CPU have.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "kernels/attention.h"
#include "kernels/cpu_isa.h"
#include "server/cli/commands.h"

namespace quire {

Subcommand MakeKernels(CLI::App& parent) {
  CLI::App* const app = parent.add_subcommand("kernels", "list attention kernels and CPU features");
  return {app, [] {
            fmt::print("--attention\n");
            for (const kernels::AttentionBackend* backend : kernels::AttentionBackends()) {
              fmt::print("  {:<10}{}{}\n", backend->name, backend->summary,
                         backend->batch_invariant ? "" : " (not batch invariant)");
            }
            fmt::print("--cpu-isa (in use: {})\n{}", kernels::NameOf(kernels::ActiveIsa()),
                       kernels::DescribeCpu());
            return 0;
          }};
}

}  // namespace quire
