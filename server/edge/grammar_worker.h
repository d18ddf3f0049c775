// server/edge/grammar_worker.h -- compiles what requests want their outputs to look like, off every
// thread that others wait for.
//
// A compilation may take seconds, so it is neither for gRPC's threads nor for the edge's or the
// engine's. The queue is bounded, and so is each compilation (GrammarLimits). The compiler is made
// when the first grammar comes: it sorts the vocabulary, which costs time and memory.
//
// Threads: Compile and the destructor any; `done` runs on one of the worker's own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "sampling/grammar.h"

namespace quire {

class GrammarWorker {
 public:
  using MakeCompiler = std::function<absl::StatusOr<std::unique_ptr<GrammarCompiler>>()>;
  using Result = absl::StatusOr<std::shared_ptr<const CompiledGrammar>>;
  using Done = std::function<void(Result)>;
  // Nobody waits for the grammar any more: it need not be compiled.
  using Dropped = std::shared_ptr<std::atomic<bool>>;

  // max_waiting: grammars that may wait while others are compiled.
  explicit GrammarWorker(MakeCompiler make, int32_t num_threads = GrammarLimits().max_compiling,
                         size_t max_waiting = 64);
  // What waits is dropped without a call of `done`; what is being compiled is waited for.
  ~GrammarWorker();
  GrammarWorker(const GrammarWorker&) = delete;
  GrammarWorker& operator=(const GrammarWorker&) = delete;

  // Calls done once, unless *dropped became true meanwhile. Its errors name the field within
  // GenerateRequest. ERRORS: kResourceExhausted if too many wait; `done` is not called then.
  absl::Status Compile(GrammarSpec spec, Dropped dropped, Done done);

  // Grammars that wait or are being compiled now, dropped ones included.
  size_t num_jobs() const;

 private:
  struct Job {
    GrammarSpec spec;
    Dropped dropped;
    Done done;
  };

  void Run();
  Result CompileNow(const GrammarSpec& spec);

  const MakeCompiler make_;
  const size_t max_waiting_;
  std::once_flag made_;
  absl::StatusOr<std::unique_ptr<GrammarCompiler>> compiler_;  // written once, by made_

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // guarded by mutex_
  int32_t num_idle_ = 0;  // guarded by mutex_
  bool stop_ = false;     // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace quire
