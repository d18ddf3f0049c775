// tokenizer/chat_template.h -- a chat as the text of a prompt, by the model's own Jinja template.
//
// Templates are programs in a language that only Python has whole, and they come from model files
// that nobody vouches for. So they run in jinja2's sandbox in a helper process of our own, as
// transformers renders them: no network, no files, no new processes; CPU time, memory, output and
// wall time limited; killed and started again if it misbehaves. Rendering is byte-equal to
// transformers' apply_chat_template(tokenize=False).
//
// A rendered prompt has the BOS text where the template writes it: encode it with
// add_special_tokens = false. Text of messages that looks like a control token ("<|im_end|>")
// becomes that token when the prompt is encoded, as in the reference implementation.
//
// Thread-safe: one rendering at a time, others wait.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tokenizer/child_process.h"

namespace quire {

struct ChatTemplateLimits {
  int64_t start_ms = 30'000;         // wall time for Python to start
  int64_t compile_cpu_ms = 3'000;    // CPU time of the helper
  int64_t render_cpu_ms = 800;       // CPU time of the helper
  int64_t wall_ms = 10'000;          // wall time of one request to the helper
  int64_t memory_bytes = 512 << 20;  // address space of the helper
  int64_t output_bytes = 16 << 20;
  size_t template_bytes = 1 << 20;
  size_t request_bytes = 64 << 20;  // messages, tools, documents and kwargs
};

struct ChatTemplateOptions {
  std::string template_text;
  // Variables of the template, such as Tokenizer::special_tokens().
  std::vector<std::pair<std::string, std::string>> special_tokens;
  std::string python = "python3";  // a name in PATH or a path; needs jinja2 >= 3.1
  ChatTemplateLimits limits;
  // "2024-07-26 14:05:09": what strftime_now shows. Empty: the clock.
  std::string pinned_now;
};

struct ChatRequest {
  std::string messages_json;   // an array
  std::string tools_json;      // an array; empty: none
  std::string documents_json;  // an array; empty: none
  std::string kwargs_json;     // an object of further variables; empty: none
  bool add_generation_prompt = true;
  // Ends the prompt with the last message, for the model to continue it.
  bool continue_final_message = false;
};

class ChatTemplate {
 public:
  // Starts the helper and compiles the template.
  // ERRORS: kInvalidArgument (the template, with line and reason), kFailedPrecondition (no Python,
  // no jinja2; with the remedy), kDeadlineExceeded.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(ChatTemplateOptions options);

  // ERRORS: kInvalidArgument: malformed JSON naming the field; the template's own text where it
  // calls raise_exception; any other error of the template with type and line; a limit exceeded.
  // kDeadlineExceeded (wall time), kInternal (the helper ended otherwise). Afterwards the next
  // request works.
  absl::StatusOr<std::string> Render(const ChatRequest& request);

  // For tests and metrics.
  pid_t helper_pid() const;
  int64_t num_starts() const;

 private:
  explicit ChatTemplate(ChatTemplateOptions options) : options_(std::move(options)) {}
  absl::Status StartLocked();
  absl::StatusOr<std::string> AskLocked(std::string_view line, std::string_view what,
                                        int64_t cpu_ms);
  absl::Status HelperFailure(const absl::Status& status, std::string_view what, int64_t cpu_ms);

  const ChatTemplateOptions options_;
  mutable std::mutex mutex_;
  ChildProcess helper_;     // guarded by mutex_
  int64_t num_starts_ = 0;  // guarded by mutex_
};

}  // namespace quire
