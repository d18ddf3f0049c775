// server/edge/grammar_worker.cc -- see grammar_worker.h.
#include "server/edge/grammar_worker.h"

#include <string>
#include <utility>

#include "base/thread_name.h"

namespace quire {
namespace {

// "regex: ..." becomes "guided.regex: ...".
absl::Status WithGuidedPath(const absl::Status& status) {
  const std::string message = Message(status);
  const bool is_json_option =
      message.rfind("max_whitespace=", 0) == 0 || message.rfind("indent=", 0) == 0;
  return absl::Status(status.code(),
                      fmt::format("guided.{}{}", is_json_option ? "json." : "", message));
}

}  // namespace

GrammarWorker::GrammarWorker(MakeCompiler make, int32_t num_threads, size_t max_waiting)
    : make_(std::move(make)),
      max_waiting_(max_waiting),
      compiler_(absl::InternalError("not made yet")) {
  CHECK(num_threads > 0, "num_threads={}", num_threads);
  for (int32_t i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] {
      SetThreadName("quire-grammar");
      Run();
    });
  }
}

GrammarWorker::~GrammarWorker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status GrammarWorker::Compile(GrammarSpec spec, Dropped dropped, Done done) {
  {
    const std::lock_guard lock(mutex_);
    // Who waits for a thread that is idle already doesn't count.
    if (jobs_.size() >= max_waiting_ + static_cast<size_t>(num_idle_)) {
      return Error(absl::StatusCode::kResourceExhausted,
                   "guided: {} grammars wait to be compiled, limit is {}; try again later",
                   jobs_.size(), max_waiting_);
    }
    jobs_.push_back({std::move(spec), std::move(dropped), std::move(done)});
  }
  changed_.notify_one();
  return absl::OkStatus();
}

size_t GrammarWorker::num_jobs() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size() + threads_.size() - static_cast<size_t>(num_idle_);
}

void GrammarWorker::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++num_idle_;
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    --num_idle_;
    if (stop_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    if (!job.dropped->load()) job.done(CompileNow(job.spec));
    job = Job{};  // before the lock is taken: what it holds may be large
    lock.lock();
  }
}

GrammarWorker::Result GrammarWorker::CompileNow(const GrammarSpec& spec) {
  std::call_once(made_, [this] { compiler_ = make_(); });
  if (!compiler_.ok()) {
    return Error(absl::StatusCode::kUnimplemented, "guided can't be had with this model: {}",
                 Message(compiler_.status()));
  }
  Result grammar = (*compiler_)->Compile(spec);
  if (!grammar.ok()) return WithGuidedPath(grammar.status());
  return grammar;
}

}  // namespace quire
