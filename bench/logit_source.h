// bench/logit_source.h -- whoever turns a window of tokens into logits: this program's runtime, or
// another engine behind a pipe.
//
// Called by accuracy_bench.cc, one thread. The pipe's protocol, in the machine's byte order: we
// write int32 n and n int32 token ids; the command answers n * vocab float32 logits, row i after
// token i. It ends when its stdin does. bench/peers/*_logits.py are such commands.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/types.h"

namespace quire {

class GgufFile;

class LogitSource {
 public:
  virtual ~LogitSource() = default;
  // Logits after each token but the last, [tokens - 1, vocab], valid until the next call. Nothing
  // is known of earlier windows. ERRORS: of the engine; kUnavailable if a command ended.
  virtual absl::StatusOr<std::span<const float>> Run(std::span<const TokenId> tokens) = 0;
  virtual int32_t vocab_size() const = 0;
  // Of the file that was loaded; null for a directory or a command.
  virtual const GgufFile* gguf() const { return nullptr; }
};

// spec: "MODEL[,key=value...]", where keys are options of `quire serve` that decide how numbers are
// computed (see kSettings; without them all is float32), or "!COMMAND", run by the shell. window:
// most tokens of a Run. vocab_size: what a command answers with. ERRORS: kInvalidArgument naming
// the setting; those of ModelRuntime::Load; kUnavailable if a command can't be started.
absl::StatusOr<std::unique_ptr<LogitSource>> OpenLogitSource(std::string_view spec, int32_t window,
                                                             int32_t num_threads,
                                                             int32_t vocab_size);

}  // namespace quire
