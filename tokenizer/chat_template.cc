#include "tokenizer/chat_template.h"

#include <signal.h>

#include <algorithm>
#include <array>

#include "base/json.h"
#include "tokenizer/chat_template_worker.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
using Code = absl::StatusCode;

ChildProcess::Deadline In(int64_t ms) { return Clock::now() + std::chrono::milliseconds(ms); }

constexpr std::array<std::string_view, 5> kReservedKwargs = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message"};

// JSON text that was checked and has no raw line break (legal between tokens only).
absl::StatusOr<std::string> OneLine(std::string_view field, const std::string& json,
                                    Json::Type type, const char* empty) {
  if (json.empty()) return std::string(empty);
  const absl::StatusOr<Json> parsed = Json::Parse(json);
  if (!parsed.ok()) return Annotate(parsed.status(), field);
  if (parsed->type() != type) {
    return InvalidArgument("{} must be a JSON {}", field,
                           type == Json::Type::kArray ? "array" : "object");
  }
  std::string line = json;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::replace(line.begin(), line.end(), '\r', ' ');
  return line;
}

absl::Status CheckKwargs(const std::string& kwargs_json) {
  if (kwargs_json.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Json kwargs, Json::Parse(kwargs_json));
  if (kwargs.Has("chat_template")) {
    return InvalidArgument(
        "chat_template_kwargs.chat_template is not allowed; the template comes with the model");
  }
  for (const std::string_view name : kReservedKwargs) {
    if (kwargs.Has(name)) {
      return InvalidArgument("chat_template_kwargs.{} is not allowed; it is a field of the request",
                             name);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RenderLine(const ChatRequest& request,
                                       const ChatTemplateLimits& limits) {
  const size_t size = request.messages_json.size() + request.tools_json.size() +
                      request.documents_json.size() + request.kwargs_json.size();
  if (size > limits.request_bytes) {
    return InvalidArgument("messages, tools, documents and kwargs have {} bytes, limit is {}", size,
                           limits.request_bytes);
  }
  if (request.messages_json.empty()) return InvalidArgument("messages is empty");
  ASSIGN_OR_RETURN(const std::string messages,
                   OneLine("messages", request.messages_json, Json::Type::kArray, "[]"));
  ASSIGN_OR_RETURN(const std::string tools,
                   OneLine("tools", request.tools_json, Json::Type::kArray, "null"));
  ASSIGN_OR_RETURN(const std::string documents,
                   OneLine("documents", request.documents_json, Json::Type::kArray, "null"));
  ASSIGN_OR_RETURN(const std::string kwargs,
                   OneLine("chat_template_kwargs", request.kwargs_json, Json::Type::kObject, "{}"));
  RETURN_IF_ERROR(CheckKwargs(request.kwargs_json));
  JsonWriter w;
  w.BeginObject();
  w.Key("op");
  w.String("render");
  w.Key("add_generation_prompt");
  w.Bool(request.add_generation_prompt);
  w.Key("continue_final_message");
  w.Bool(request.continue_final_message);
  w.Key("messages");
  w.Raw(messages);  // as they are: the order of keys shows in rendered text
  w.Key("tools");
  w.Raw(tools);
  w.Key("documents");
  w.Raw(documents);
  w.Key("kwargs");
  w.Raw(kwargs);
  w.EndObject();
  return w.text() + "\n";
}

std::string CompileLine(const ChatTemplateOptions& options) {
  JsonWriter w;
  w.BeginObject();
  w.Key("op");
  w.String("compile");
  w.Key("template");
  w.String(options.template_text);
  w.Key("now");
  w.String(options.pinned_now);
  w.Key("special");
  w.BeginObject();
  for (const auto& [name, text] : options.special_tokens) {
    w.Key(name);
    w.String(text);
  }
  w.EndObject();
  w.Key("limits");
  w.BeginObject();
  w.Key("memory_bytes");
  w.Int(options.limits.memory_bytes);
  w.Key("output_bytes");
  w.Int(options.limits.output_bytes);
  w.Key("compile_cpu_ms");
  w.Int(options.limits.compile_cpu_ms);
  w.Key("render_cpu_ms");
  w.Int(options.limits.render_cpu_ms);
  w.EndObject();
  w.EndObject();
  return w.text() + "\n";
}

// An {"ok": false} answer as a status.
absl::Status TemplateError(const Json& answer, const ChatTemplateLimits& limits) {
  const std::string_view kind = answer["kind"].as_string().value_or("");
  const std::string_view message = answer["message"].as_string().value_or("");
  const int64_t line = answer["line"].as_int().value_or(0);
  if (kind == "raised") return absl::InvalidArgumentError(std::string(message));
  if (kind == "too_long") {
    return InvalidArgument("chat template renders more than {} bytes, the limit",
                           limits.output_bytes);
  }
  if (kind == "memory") {
    return InvalidArgument("chat template needs more memory than the limit of {} bytes",
                           limits.memory_bytes);
  }
  if (kind == "request") return InvalidArgument("messages: {}", message);
  if (line > 0) return InvalidArgument("chat template line {}: {}", line, message);
  return InvalidArgument("chat template: {}", message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(ChatTemplateOptions options) {
  if (options.template_text.empty()) return InvalidArgument("chat_template is empty");
  if (options.template_text.size() > options.limits.template_bytes) {
    return InvalidArgument("chat_template has {} bytes, limit is {}", options.template_text.size(),
                           options.limits.template_bytes);
  }
  if (const auto offset = FindInvalidUtf8(options.template_text)) {
    return InvalidArgument("chat_template is not valid UTF-8 at byte {}", *offset);
  }
  std::unique_ptr<ChatTemplate> chat(new ChatTemplate(std::move(options)));
  const std::lock_guard<std::mutex> lock(chat->mutex_);
  RETURN_IF_ERROR(chat->StartLocked());
  return chat;
}

absl::Status ChatTemplate::StartLocked() {
  constexpr std::string_view kRemedy =
      "chat needs Python 3 with jinja2: apt-get install python3-jinja2, or name another Python";
  absl::StatusOr<ChildProcess> helper =
      ChildProcess::Start({options_.python, "-I", "-c", kChatTemplateWorker});
  if (!helper.ok())
    return Error(helper.status().code(), "{}; {}", Message(helper.status()), kRemedy);
  helper_ = *std::move(helper);
  ++num_starts_;
  const absl::StatusOr<std::string> line = helper_.ReadLine(4096, In(options_.limits.start_ms));
  if (!line.ok()) {
    helper_.Kill();
    if (line.status().code() == Code::kDeadlineExceeded) {
      return Error(Code::kDeadlineExceeded, "python='{}' is not ready after {} ms", options_.python,
                   options_.limits.start_ms);
    }
    return Error(Code::kFailedPrecondition, "python='{}' ended at once; {}", options_.python,
                 kRemedy);
  }
  const absl::StatusOr<Json> ready = Json::Parse(*line);
  if (!ready.ok() || ready->operator[]("ready").as_bool() != true) {
    helper_.Kill();
    const std::string why =
        ready.ok() ? std::string((*ready)["message"].as_string().value_or("")) : *line;
    return Error(Code::kFailedPrecondition, "python='{}': {}; {}", options_.python, why, kRemedy);
  }
  const absl::StatusOr<std::string> compiled =
      AskLocked(CompileLine(options_), "compiling", options_.limits.compile_cpu_ms);
  if (!compiled.ok()) helper_.Kill();
  return compiled.status();
}

absl::Status ChatTemplate::HelperFailure(const absl::Status& status, std::string_view what,
                                         int64_t cpu_ms) {
  const int signal = helper_.Kill();
  switch (status.code()) {
    case Code::kDeadlineExceeded:
      return Error(Code::kDeadlineExceeded, "{} the chat template took longer than {} ms", what,
                   options_.limits.wall_ms);
    case Code::kResourceExhausted:
      return InvalidArgument("{} the chat template: {}", what, Message(status));
    default:
      break;
  }
  if (signal == SIGPROF || signal == SIGXCPU) {
    return InvalidArgument("{} the chat template took more than {} ms of CPU time, the limit", what,
                           cpu_ms);
  }
  return Error(Code::kInternal, "{} the chat template ended its helper process (signal {})", what,
               signal);
}

absl::StatusOr<std::string> ChatTemplate::AskLocked(std::string_view line, std::string_view what,
                                                    int64_t cpu_ms) {
  const ChildProcess::Deadline deadline = In(options_.limits.wall_ms);
  const absl::Status written = helper_.Write(line, deadline);
  if (!written.ok()) return HelperFailure(written, what, cpu_ms);
  // In JSON a byte of text takes six at most.
  const size_t max_bytes = static_cast<size_t>(options_.limits.output_bytes) * 6 + 65536;
  const absl::StatusOr<std::string> text = helper_.ReadLine(max_bytes, deadline);
  if (!text.ok()) return HelperFailure(text.status(), what, cpu_ms);
  const absl::StatusOr<Json> answer = Json::Parse(*text);
  if (!answer.ok()) {
    helper_.Kill();
    return Error(Code::kInternal, "the chat template's helper answered with malformed JSON");
  }
  if ((*answer)["ok"].as_bool() != true) return TemplateError(*answer, options_.limits);
  return std::string((*answer)["text"].as_string().value_or(""));
}

absl::StatusOr<std::string> ChatTemplate::Render(const ChatRequest& request) {
  ASSIGN_OR_RETURN(const std::string line, RenderLine(request, options_.limits));
  const std::lock_guard<std::mutex> lock(mutex_);
  // A helper that was killed from outside while it was idle is started anew, once.
  const bool fresh = !helper_.running();
  if (fresh) RETURN_IF_ERROR(StartLocked());
  absl::StatusOr<std::string> text = AskLocked(line, "rendering", options_.limits.render_cpu_ms);
  if (text.ok() || fresh || text.status().code() != Code::kInternal) return text;
  RETURN_IF_ERROR(StartLocked());
  return AskLocked(line, "rendering", options_.limits.render_cpu_ms);
}

pid_t ChatTemplate::helper_pid() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return helper_.pid();
}

int64_t ChatTemplate::num_starts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_starts_;
}

}  // namespace quire
