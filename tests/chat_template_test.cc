// Chat templates: every case that transformers rendered into tests/reference/chat, and templates
// that misbehave. Needs a python3 with jinja2, as the daemon does for chat.
// (HARD-CASES G02, G03, G04, G05, G08.)
#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/json.h"
#include "base/mapped_file.h"

namespace quire {
namespace {

using Code = absl::StatusCode;

std::unique_ptr<ChatTemplate> Make(ChatTemplateOptions options) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> chat = ChatTemplate::Create(std::move(options));
  CHECK(chat.ok(), "{}", Message(chat.status()));
  return *std::move(chat);
}

std::unique_ptr<ChatTemplate> Make(const std::string& text) {
  ChatTemplateOptions options;
  options.template_text = text;
  return Make(std::move(options));
}

ChatRequest Messages(const std::string& json) { return {.messages_json = json}; }

constexpr char kHello[] = R"([{"role": "user", "content": "Hello"}])";

std::string OrEmpty(const Json& value) { return value.is_null() ? "" : value.Dump(); }

// The messages of a case with their keys in the order of the file, which Json does not keep:
// the n-th "messages": [...] of the text.
class MessageReader {
 public:
  explicit MessageReader(const std::string& text) : text_(text) {}
  std::string Next(const std::string& key) {
    const std::string name = "\"" + key + "\": ";
    pos_ = text_.find(name, pos_) + name.size();
    size_t end = pos_;
    int depth = 0;
    bool in_string = false;
    for (; end < text_.size(); ++end) {
      const char c = text_[end];
      if (in_string) {
        if (c == '\\') ++end;
        in_string = c != '"';
        continue;
      }
      in_string = c == '"';
      if (c == '[' || c == '{') ++depth;
      if (c == ']' || c == '}') --depth;
      if (depth == 0 && (c == ']' || c == '}' || c == ',')) break;
    }
    const std::string value = text_.substr(pos_, end - pos_ + (text_[end] == ',' ? 0 : 1));
    pos_ = end;
    return value == "null" ? "" : value;
  }

 private:
  const std::string& text_;
  size_t pos_ = 0;
};

TEST(ChatTemplate, EqualsTransformers) {
  const absl::StatusOr<std::string> file =
      ReadTextFile(std::string(QUIRE_TEST_REFERENCE) + "/chat/chat.json", 16 << 20);
  ASSERT_TRUE(file.ok()) << Message(file.status());
  const absl::StatusOr<Json> doc = Json::Parse(*file);
  ASSERT_TRUE(doc.ok()) << Message(doc.status());
  int rendered = 0;
  int errors = 0;
  int raised = 0;
  // In file order, for MessageReader: templates by their place in the text.
  std::vector<std::pair<size_t, std::string>> names;
  for (const std::string& name : (*doc)["templates"].keys()) {
    names.emplace_back(file->find("\n  \"" + name + "\": {"), name);
  }
  std::sort(names.begin(), names.end());
  MessageReader reader(*file);
  for (const auto& [place, name] : names) {
    const Json entry = (*doc)["templates"][name];
    ChatTemplateOptions options;
    options.template_text = std::string(*entry["template"].as_string());
    options.pinned_now = std::string(*(*doc)["now"].as_string());
    entry["special"].ForEach([&](std::string_view key, const Json& text) {
      options.special_tokens.emplace_back(std::string(key), std::string(*text.as_string()));
    });
    const absl::StatusOr<std::unique_ptr<ChatTemplate>> chat = ChatTemplate::Create(options);
    const Json cases = entry["cases"];
    for (size_t i = 0; i < cases.size(); ++i) {
      const Json c = cases.at(i);
      const std::string messages = reader.Next("messages");
      const std::string tools = reader.Next("tools");
      const std::string documents = reader.Next("documents");
      if (!chat.ok()) {  // does not compile: that is the error which the case expects
        EXPECT_TRUE(c.Has("error")) << name << ": " << Message(chat.status());
        ++errors;
        continue;
      }
      const absl::StatusOr<std::string> text =
          (*chat)->Render({.messages_json = messages,
                           .tools_json = tools,
                           .documents_json = documents,
                           .kwargs_json = OrEmpty(c["kwargs"]),
                           .add_generation_prompt = *c["add_generation_prompt"].as_bool(),
                           .continue_final_message = *c["continue_final_message"].as_bool()});
      const std::string where = fmt::format("{} case {} ({})", name, i, *c["chat"].as_string());
      if (c.Has("error")) {
        ASSERT_EQ(text.status().code(), Code::kInvalidArgument) << where;
        const std::string message(*c["error"]["message"].as_string());
        if (c["error"]["type"].as_string() == "TemplateError") {
          EXPECT_EQ(Message(text.status()), message) << where;  // raise_exception
          ++raised;
        } else {
          EXPECT_NE(Message(text.status()).find(message), std::string::npos)
              << where << ": " << Message(text.status());
        }
        ++errors;
      } else {
        ASSERT_TRUE(text.ok()) << where << ": " << Message(text.status());
        EXPECT_EQ(*text, *c["rendered"].as_string()) << where;
        ++rendered;
      }
    }
  }
  EXPECT_GT(rendered, 340);
  EXPECT_GT(errors, 40);
  EXPECT_GT(raised, 20);
}

TEST(ChatTemplate, CompileErrorsHaveTheLine) {
  const auto chat = ChatTemplate::Create({.template_text = "{{ 'a' }}\n{{ 'b' }}\n{% if x %}\n{{"});
  ASSERT_EQ(chat.status().code(), Code::kInvalidArgument);
  EXPECT_NE(Message(chat.status()).find("chat template line 4: TemplateSyntaxError"),
            std::string::npos)
      << Message(chat.status());
  const auto filter = ChatTemplate::Create({.template_text = "a\nb\n{{ messages | nosuch }}"});
  EXPECT_NE(Message(filter.status()).find("line 3"), std::string::npos) << Message(filter.status());
  EXPECT_EQ(ChatTemplate::Create({.template_text = ""}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ChatTemplate::Create({.template_text = "\xFF"}).status().code(),
            Code::kInvalidArgument);
}

TEST(ChatTemplate, RaisedTextIsTheWholeMessage) {
  const auto chat = Make(
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
      "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}ok");
  const auto bad =
      chat->Render(Messages(R"([{"role":"user","content":"a"},{"role":"system","content":"b"}])"));
  EXPECT_EQ(bad.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Message(bad.status()), "System message must be at the beginning.");
  const auto good = chat->Render(Messages(kHello));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, "ok");
  EXPECT_EQ(chat->num_starts(), 1);
}

// Expected texts are jinja2's own documentation of trim_blocks and lstrip_blocks (G08).
TEST(ChatTemplate, WhiteSpaceRules) {
  const auto render = [](const std::string& text) {
    return Make(text)->Render(Messages(kHello)).value();
  };
  EXPECT_EQ(render("<div>\n    {# a comment #}\n        yay\n    {# another\n      #}\n        "
                   "whoop\n</div>"),
            "<div>\n        yay\n        whoop\n</div>");
  EXPECT_EQ(render("a\n  {%+ if true %}b{% endif %}\nc"), "a\n  bc");
  EXPECT_EQ(render("a  {{- 'x' -}}  b\n"), "axb");
  EXPECT_EQ(render("{% raw %}{{ x }}{% endraw %}\n"), "{{ x }}");
  EXPECT_EQ(render("a\r\nb\r\n"), "a\nb");
}

TEST(ChatTemplate, KeepsOrderOfKeysAndEscapesNothing) {
  const auto chat = Make("{{ messages[0] | tojson }}{{ tools | tojson(indent=1) }}");
  const auto text = chat->Render(
      {.messages_json = "[{\"role\":\n \"user\", \"b\": \"<&'\\u00e9\", \"a\":\r\n 1}]",
       .tools_json = R"([{"z": 1, "a": null}])"});
  ASSERT_TRUE(text.ok()) << Message(text.status());
  EXPECT_EQ(*text,
            "{\"role\": \"user\", \"b\": \"<&'\xC3\xA9\", \"a\": 1}"
            "[\n {\n  \"z\": 1,\n  \"a\": null\n }\n]");
}

TEST(ChatTemplate, RefusesBadRequests) {
  const auto chat = Make("{{ messages[0].content }}{{ extra }}");
  const auto error = [&](ChatRequest request) {
    const auto text = chat->Render(request);
    EXPECT_EQ(text.status().code(), Code::kInvalidArgument);
    return Message(text.status());
  };
  EXPECT_NE(error(Messages("")).find("messages"), std::string::npos);
  EXPECT_NE(error(Messages("{}")).find("messages must be a JSON array"), std::string::npos);
  EXPECT_NE(error(Messages("[1,")).find("messages: json is malformed"), std::string::npos);
  EXPECT_NE(error(Messages("[NaN]")).find("messages"), std::string::npos);
  EXPECT_NE(error({.messages_json = kHello, .tools_json = "{}"}).find("tools"), std::string::npos);
  EXPECT_NE(error({.messages_json = kHello, .kwargs_json = "[]"}).find("chat_template_kwargs"),
            std::string::npos);
  EXPECT_NE(error({.messages_json = kHello, .kwargs_json = R"({"chat_template": "x"})"})
                .find("chat_template_kwargs.chat_template is not allowed"),
            std::string::npos);
  EXPECT_NE(error({.messages_json = kHello, .kwargs_json = R"({"messages": []})"})
                .find("chat_template_kwargs.messages"),
            std::string::npos);
  const auto good = chat->Render({.messages_json = kHello, .kwargs_json = R"({"extra": "!"})"});
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, "Hello!");
}

// A template that does `work` if the first message says so, else answers "fine".
std::unique_ptr<ChatTemplate> MakeHostile(const std::string& work, ChatTemplateLimits limits = {}) {
  ChatTemplateOptions options;
  options.template_text =
      "{% if messages[0].content == 'bad' %}" + work + "{% else %}fine{% endif %}";
  options.limits = limits;
  return Make(std::move(options));
}

constexpr char kBad[] = R"([{"role": "user", "content": "bad"}])";

void ExpectStoppedAndAlive(ChatTemplate& chat, std::string_view in_message) {
  const auto bad = chat.Render(Messages(kBad));
  EXPECT_EQ(bad.status().code(), Code::kInvalidArgument) << Message(bad.status());
  EXPECT_NE(Message(bad.status()).find(in_message), std::string::npos) << Message(bad.status());
  const auto good = chat.Render(Messages(kHello));
  ASSERT_TRUE(good.ok()) << Message(good.status());
  EXPECT_EQ(*good, "fine");
}

TEST(ChatTemplate, WorkIsBounded) {
  const auto loops =
      MakeHostile("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
  ExpectStoppedAndAlive(*loops, "CPU time");
  EXPECT_EQ(loops->num_starts(), 2);  // killed, and started again
  const auto output = MakeHostile(
      "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 9999 }}{% endfor %}"
      "{% endfor %}",
      {.output_bytes = 1 << 20});
  ExpectStoppedAndAlive(*output, "more than 1048576 bytes");
  EXPECT_EQ(output->num_starts(), 1);
  const auto memory = MakeHostile("{{ (messages[0].content * 10**9) | length }}");
  ExpectStoppedAndAlive(*memory, "memory");
  const auto replaced = MakeHostile("{{ ('a' * 10**4) | replace('a', 'b' * 10**5) }}");
  ExpectStoppedAndAlive(*replaced, "limit");
  const auto recursive = MakeHostile("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}");
  ExpectStoppedAndAlive(*recursive, "RecursionError");
  const auto number = MakeHostile("{% set n = messages | length * 9 %}{{ n ** (n ** n) }}");
  ExpectStoppedAndAlive(*number, "limit");
}

TEST(ChatTemplate, CompilingIsBounded) {
  for (const std::string& text :
       {std::string(100'000, '(') + "1" + std::string(100'000, ')'),
        "{{ " + std::string(100'000, '(') + "1" + std::string(100'000, ')') + " }}",
        "{{ " + std::string(100'000, '[') + " }}", std::string("{{ 9 ** (9 ** (9 ** 9)) }}")}) {
    const auto chat =
        ChatTemplate::Create({.template_text = text, .limits = {.compile_cpu_ms = 500}});
    // Plain text is fine; the others end in an error, not in a crash or a hang.
    EXPECT_EQ(chat.ok(), text[0] == '(') << text.substr(0, 20);
  }
  const auto huge = ChatTemplate::Create({.template_text = std::string(50 << 20, 'x')});
  EXPECT_NE(Message(huge.status()).find("limit is 1048576"), std::string::npos);
}

TEST(ChatTemplate, SandboxHolds) {
  for (const std::string text :
       {"{{ ''.__class__.__mro__ }}", "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ cycler.__init__.__globals__ }}", "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as p %}{{ p }}", "{% extends '/etc/passwd' %}",
        "{{ messages.append(1) }}", "{{ '%s' | format(messages.__class__) }}{{ x.y }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}{{ x.y }}"}) {
    const auto chat = ChatTemplate::Create({.template_text = text});
    if (!chat.ok()) continue;
    const auto out = (*chat)->Render(Messages(kHello));
    if (out.ok()) {  // an undefined attribute renders as nothing; never as an object of the host
      EXPECT_EQ(*out, "") << text;
    } else {
      EXPECT_EQ(out.status().code(), Code::kInvalidArgument) << text << Message(out.status());
    }
  }
}

TEST(ChatTemplate, HelperHasNoDescriptorsOfOurs) {
  const auto chat = Make("x");
  ASSERT_TRUE(chat->Render(Messages(kHello)).ok());
  const std::string dir = fmt::format("/proc/{}/fd/", chat->helper_pid());
  for (int fd = 3; fd < 256; ++fd) {
    EXPECT_NE(access((dir + std::to_string(fd)).c_str(), F_OK), 0) << "descriptor " << fd;
  }
  std::ifstream limits(fmt::format("/proc/{}/limits", chat->helper_pid()));
  std::string line;
  bool seen = false;
  while (std::getline(limits, line)) {
    if (line.rfind("Max open files", 0) != 0) continue;
    seen = true;
    EXPECT_NE(line.find(" 3 "), std::string::npos) << line;
  }
  EXPECT_TRUE(seen);
}

TEST(ChatTemplate, StartsAgainWhenTheHelperIsKilled) {
  const auto chat = Make("{{ messages[0].content }}");
  ASSERT_EQ(kill(chat->helper_pid(), SIGKILL), 0);
  const auto text = chat->Render(Messages(kHello));
  ASSERT_TRUE(text.ok()) << Message(text.status());
  EXPECT_EQ(*text, "Hello");
  EXPECT_EQ(chat->num_starts(), 2);
}

TEST(ChatTemplate, ManyThreads) {
  const auto chat = Make("{{ messages[0].content }}");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&chat, t] {
      for (int i = 0; i < 25; ++i) {
        const std::string content = fmt::format("{}-{}", t, i);
        const auto text =
            chat->Render(Messages(fmt::format(R"([{{"role":"user","content":"{}"}}])", content)));
        EXPECT_TRUE(text.ok()) << Message(text.status());
        EXPECT_EQ(text.value_or(""), content);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(ChatTemplate, MissingPythonSaysWhatToDo) {
  for (const std::string python : {"/nonexistent/python3", "/bin/true"}) {
    const auto chat = ChatTemplate::Create({.template_text = "x", .python = python});
    EXPECT_EQ(chat.status().code(), Code::kFailedPrecondition);
    EXPECT_NE(Message(chat.status()).find(python), std::string::npos);
    EXPECT_NE(Message(chat.status()).find("apt-get install python3-jinja2"), std::string::npos);
  }
}

// State letter of /proc/pid/stat, or 0 if there is no such process.
char ProcessState(pid_t pid) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(stat, text)) return 0;
  const size_t paren = text.rfind(')');
  return paren == std::string::npos ? 0 : text[paren + 2];
}

TEST(ChatTemplate, HelperEndsWithTheDaemon) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t daemon = fork();
  ASSERT_GE(daemon, 0);
  if (daemon == 0) {
    const auto chat = Make("x");
    const pid_t pid = chat->helper_pid();
    if (write(fds[1], &pid, sizeof pid) != sizeof pid) _exit(1);
    for (;;) pause();
  }
  pid_t helper = 0;
  ASSERT_EQ(read(fds[0], &helper, sizeof helper), static_cast<ssize_t>(sizeof helper));
  ASSERT_GT(helper, 0);
  EXPECT_NE(ProcessState(helper), 0);
  kill(daemon, SIGKILL);
  waitpid(daemon, nullptr, 0);
  char state = 'R';
  for (int i = 0; i < 3000 && state != 0 && state != 'Z'; ++i) {
    usleep(10'000);
    state = ProcessState(helper);
  }
  EXPECT_TRUE(state == 0 || state == 'Z') << state;
  close(fds[0]);
  close(fds[1]);
}

}  // namespace
}  // namespace quire
