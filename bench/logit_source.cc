#include "bench/logit_source.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "models/executor.h"
#include "models/runtime.h"
#include "scheduler/sequence.h"

namespace quire {
namespace {

// What "key=value" may set.
struct Setting {
  std::string_view key;
  std::string RuntimeOptions::*field;
};
constexpr Setting kSettings[] = {
    {"attention", &RuntimeOptions::attention},
    {"compute", &RuntimeOptions::compute},
    {"cpu_isa", &RuntimeOptions::cpu_isa},
    {"kv_cache_dtype", &RuntimeOptions::kv_cache_dtype},
    {"quantization", &RuntimeOptions::quantization},
};

class OwnModel : public LogitSource {
 public:
  explicit OwnModel(std::unique_ptr<ModelRuntime> runtime)
      : runtime_(std::move(runtime)),
        executor_(dynamic_cast<ModelExecutor*>(&runtime_->executor())) {
    CHECK(executor_ != nullptr, "the runtime's executor keeps no logits");
  }
  int32_t vocab_size() const override { return runtime_->config().vocab_size; }
  const GgufFile* gguf() const override { return runtime_->gguf(); }

  // The way of a prompt whose logprobs are asked for, in one step.
  absl::StatusOr<std::span<const float>> Run(std::span<const TokenId> tokens) override {
    const auto n = static_cast<int32_t>(tokens.size());
    auto request = std::make_shared<Request>();
    request->prompt.assign(tokens.begin(), tokens.end());
    request->sampling.temperature = 0;
    request->prompt_logprobs = 0;
    BlockManager& blocks = runtime_->block_manager();
    Sequence sequence;
    sequence.tokens = request->prompt;
    sequence.request = std::move(request);
    sequence.tables = blocks.NewTables(blocks.InternRoot("accuracy", /*keep=*/false));
    ScheduledBatch batch;
    CHECK(blocks.Grow(sequence.tables, 0, n, batch.copies), "no room for {} tokens", n);
    batch.num_tokens = n;
    batch.seqs.push_back({.seq = &sequence, .num_tokens = n, .num_prompt_logprobs = n - 1});
    RETURN_IF_ERROR(executor_->Run(batch).status());
    return executor_->last_logits();
  }

 private:
  std::unique_ptr<ModelRuntime> runtime_;
  ModelExecutor* executor_;
};

class PipedEngine : public LogitSource {
 public:
  PipedEngine(std::string text, int32_t vocab_size)
      : text_(std::move(text)), vocab_size_(vocab_size) {}
  ~PipedEngine() override {
    if (to_ >= 0) close(to_);
    if (from_ >= 0) close(from_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }

  absl::Status Start() {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0) return Gone();
    if (pipe2(out, O_CLOEXEC) != 0) {
      close(in[0]);
      close(in[1]);
      return Gone();
    }
    std::signal(SIGPIPE, SIG_IGN);  // a command that ended is an error of write
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      execl("/bin/sh", "sh", "-c", text_.c_str(), nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
    return pid_ > 0 ? absl::OkStatus() : Gone();
  }

  int32_t vocab_size() const override { return vocab_size_; }

  absl::StatusOr<std::span<const float>> Run(std::span<const TokenId> tokens) override {
    const auto n = static_cast<int32_t>(tokens.size());
    const auto vocab = static_cast<size_t>(vocab_size_);
    RETURN_IF_ERROR(Write(&n, sizeof n));
    RETURN_IF_ERROR(Write(tokens.data(), tokens.size_bytes()));
    logits_.resize(tokens.size() * vocab);
    RETURN_IF_ERROR(Read(logits_.data(), logits_.size() * sizeof(float)));
    return std::span<const float>(logits_).first((tokens.size() - 1) * vocab);
  }

 private:
  absl::Status Gone() const {
    return Error(absl::StatusCode::kUnavailable, "command={} can't be started or has ended", text_);
  }
  absl::Status Write(const void* data, size_t bytes) {
    const auto* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = write(to_, p, bytes);
      if (n <= 0) return Gone();
      p += n;
      bytes -= static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }
  absl::Status Read(void* data, size_t bytes) {
    auto* p = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t n = read(from_, p, bytes);
      if (n <= 0) return Gone();
      p += n;
      bytes -= static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

  const std::string text_;
  const int32_t vocab_size_;
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::vector<float> logits_;
};

absl::Status Set(std::string_view text, RuntimeOptions& options) {
  const size_t equals = text.find('=');
  const std::string_view key = text.substr(0, equals);
  const auto* setting = std::find_if(std::begin(kSettings), std::end(kSettings),
                                     [&](const Setting& s) { return s.key == key; });
  if (setting == std::end(kSettings) || equals == std::string_view::npos) {
    std::string known;
    for (const Setting& s : kSettings)
      known += fmt::format("{}{}", known.empty() ? "" : ", ", s.key);
    return InvalidArgument("setting={} is unknown; give key=value, keys are {}", text, known);
  }
  options.*(setting->field) = std::string(text.substr(equals + 1));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogitSource>> OpenLogitSource(std::string_view spec, int32_t window,
                                                             int32_t num_threads,
                                                             int32_t vocab_size) {
  if (!spec.empty() && spec.front() == '!') {
    auto command = std::make_unique<PipedEngine>(std::string(spec.substr(1)), vocab_size);
    RETURN_IF_ERROR(command->Start());
    return command;
  }
  RuntimeOptions options;
  options.compute = "float32";
  options.kv_cache_dtype = "float32";
  size_t comma = spec.find(',');
  options.model = std::string(spec.substr(0, comma));
  while (comma != std::string_view::npos) {
    spec.remove_prefix(comma + 1);
    comma = spec.find(',');
    RETURN_IF_ERROR(Set(spec.substr(0, comma), options));
  }
  options.num_threads = num_threads;
  options.max_model_len = window;
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = window;
  options.max_logit_rows = window;
  options.memory.num_blocks = window / options.block_size + 2;
  ASSIGN_OR_RETURN(std::unique_ptr<ModelRuntime> runtime, ModelRuntime::Load(options));
  return std::make_unique<OwnModel>(std::move(runtime));
}

}  // namespace quire
