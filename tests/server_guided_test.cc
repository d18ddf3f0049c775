// Structured output through the real daemon with a scripted executor: what is refused, with which
// words; that nobody waits for a compilation but its own request. HARD-CASES O01, O02, O03 by RPC.
#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "sampling/grammar_vocabulary.h"
#include "server/edge/grammar_worker.h"
#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;

// Says the given text; a grammar allows it or not.
void SayText(Rig& rig, const std::string& text) {
  const std::vector<TokenId> ids = rig.Encode(text);
  rig.executor.Say([ids](const Request&, int32_t, int32_t num_output) {
    return ids[static_cast<size_t>(num_output) % ids.size()];
  });
}

pb::GenerateRequest Guided(const std::function<void(pb::GuidedDecoding&)>& set) {
  pb::GenerateRequest request = Rig::TextRequest("abc", 40);
  set(*request.mutable_guided());
  return request;
}

std::string Repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(GuidedTest, EachKindEndsWhereItsGrammarEnds) {
  Rig rig;  // no end tokens: only the grammar ends an output
  using G = pb::GuidedDecoding;
  const std::vector<std::pair<std::function<void(G&)>, std::string>> cases = {
      {[](G& g) { g.set_regex("[0-9]{4}-[0-9]{2}"); }, "2031-07"},
      {[](G& g) { g.set_grammar(R"(root ::= "a" [b-d] "e")"); }, "ace"},
      {[](G& g) {
         g.mutable_choice()->add_texts("yes");
         g.mutable_choice()->add_texts("no");
       },
       "no"},
      {[](G& g) { g.set_json_schema(R"({"type":"boolean"})"); }, "true"},
      {[](G& g) { g.set_json_schema(R"({"const":{"a":1}})"); }, R"({"a":1})"},
  };
  for (const auto& [set, text] : cases) {
    SayText(rig, text);
    const Answer answer = rig.Generate(Guided(set));
    ASSERT_TRUE(answer.status.ok()) << text << ": " << answer.status.error_message();
    EXPECT_EQ(answer.texts.at(0), text);
    EXPECT_EQ(answer.finished.at(0).reason(), pb::FINISH_REASON_STOP);
    const auto [status, result] = rig.GenerateUnary(Guided(set));
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(result.outputs(0).text(), text);
  }
  rig.ExpectIdle();
}

TEST(GuidedTest, O01_O02_O03_RefusedWithTheReasonWhileOthersRun) {
  Rig rig;
  rig.executor.Pause(milliseconds(1));
  Call running(rig.stub(), Rig::TextRequest("abc", 400));
  ASSERT_TRUE(running.Read());

  struct Refusal {
    std::function<void(pb::GuidedDecoding&)> set;
    std::vector<std::string> parts;
  };
  const auto schema = [](std::string text) {
    return [text](pb::GuidedDecoding& g) { g.set_json_schema(text); };
  };
  const auto regex = [](std::string text) {
    return [text](pb::GuidedDecoding& g) { g.set_regex(text); };
  };
  const auto grammar = [](std::string text) {
    return [text](pb::GuidedDecoding& g) { g.set_grammar(text); };
  };
  using G = pb::GuidedDecoding;
  const std::vector<Refusal> cases = {
      {[](G&) {}, {"guided has no guide"}},
      // O01: nesting by depth, patterns by their fault.
      {schema(Repeat(R"({"items":)", 1000) + "{}" + Repeat("}", 1000)),
       {"guided.json_schema", "nests deeper"}},
      {schema(Repeat(R"({"anyOf":[)", 1000) + "{}" + Repeat("]}", 1000)),
       {"guided.json_schema", "nests deeper"}},
      {regex(Repeat("(", 3000) + "a" + Repeat(")", 3000)), {"guided.regex", "nested deeper"}},
      {regex("*a"), {"guided.regex"}},
      {regex("a{1000000000}"), {"guided.regex", "repeats"}},
      {regex("[z-a]"), {"guided.regex"}},
      {regex(""), {"guided.regex must not be empty"}},
      // O02
      {grammar("root ::= " + Repeat("(", 20000) + "\"a\"" + Repeat(")", 20000)),
       {"guided.grammar", "nested deeper"}},
      {grammar("start ::= \"a\""), {"guided.grammar", "root"}},
      {grammar(std::string(10 << 20, 'a')), {"guided.grammar has 10485760 bytes, limit is"}},
      // O03
      {regex("("), {"guided.regex"}},
      {schema(R"({"type":"stirng"})"), {"guided.json_schema.type=", "stirng"}},
      {schema(R"({"$ref":"#/nope"})"), {"guided.json_schema.$ref", "nope"}},
      {schema(R"({"enum":[]})"), {"guided.json_schema.enum"}},
      {schema(R"({"type":"string","minLength":5,"maxLength":2})"),
       {"guided.json_schema.minLength=5", "2"}},
      {schema(R"({"type":"object","properties":{},"required":["x"],)"
              R"("additionalProperties":false})"),
       {"guided.json_schema.required[0]='x'"}},
      {schema("{"), {"guided.json_schema"}},
      // Options.
      {[](G& g) { g.mutable_choice(); }, {"guided.choice must have at least one entry"}},
      {[](G& g) { g.mutable_choice()->add_texts(""); }, {"guided.choice[0]"}},
      {[](G& g) { g.set_json_object(false); }, {"guided.json_object=false"}},
      {[](G& g) { g.set_structural_tag("[]"); }, {"guided.structural_tag"}},
      {[](G& g) {
         g.set_regex("a");
         g.mutable_json()->set_strict(true);
       },
       {"guided.json", "json_schema"}},
      {[](G& g) {
         g.set_json_object(true);
         g.mutable_json()->set_strict(true);
       },
       {"guided.json.strict"}},
      {[](G& g) {
         g.set_json_object(true);
         g.mutable_json()->set_max_whitespace(0);
       },
       {"guided.json.max_whitespace=0", "1024"}},
      {[](G& g) {
         g.set_json_object(true);
         g.mutable_json()->set_indent(2);
       },
       {"guided.json.indent", "any_whitespace=false"}},
      {[](G& g) {
         g.set_json_object(true);
         g.mutable_json()->set_any_whitespace(false);
         g.mutable_json()->set_max_whitespace(3);
       },
       {"guided.json.max_whitespace=3", "any_whitespace"}},
      {[](G& g) {
         g.set_json_object(true);
         g.mutable_json()->set_any_whitespace(false);
         g.mutable_json()->set_item_separator(";");
       },
       {"guided.json.item_separator=';'"}},
  };
  for (const Refusal& c : cases) {
    const grpc::Status status = rig.Generate(Guided(c.set)).status;
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT)
        << c.parts[0] << ": " << status.error_message().substr(0, 300);
    for (const std::string& part : c.parts) {
      EXPECT_NE(status.error_message().find(part), std::string::npos)
          << part << " is not in: " << status.error_message().substr(0, 300);
    }
  }
  rig.executor.Pause(milliseconds(0));
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_EQ(running.answer.token_ids.at(0).size(), 400u);
  rig.ExpectIdle();
  EXPECT_EQ(rig.daemon().edge().counts().refused, cases.size());
}

// The rig's grammars behind a gate: the first waits until the test opens it, and all others behind
// the first.
class GatedWorker {
 public:
  explicit GatedWorker(Rig& rig)
      : worker_(
            [this, &rig] {
              opened_.get_future().wait();
              return GrammarCompiler::Make(
                  MakeGrammarVocabulary(rig.tokenizer(), rig.tokenizer().vocab_size(), {}));
            },
            /*num_threads=*/1, /*max_waiting=*/4) {
    rig.daemon().edge().UseGrammars(worker_);
  }
  ~GatedWorker() { Open(); }
  void Open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }
  size_t num_jobs() const { return worker_.num_jobs(); }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
  GrammarWorker worker_;
};

TEST(GuidedTest, WhileItIsCompiledOthersRunAndDeadlinesHold) {
  Rig rig;
  GatedWorker worker(rig);
  const auto arrived = [&](size_t jobs) {
    return rig.Eventually([&] { return worker.num_jobs() == jobs; });
  };
  const pb::GenerateRequest request = Guided([](pb::GuidedDecoding& g) { g.set_regex("abc"); });
  Call first(rig.stub(), request);
  EXPECT_TRUE(arrived(1));
  rig.Probe();  // nobody else is held up

  Call cancelled(rig.stub(), request);
  EXPECT_TRUE(arrived(2));
  pb::GenerateRequest with_queue_timeout = request;
  with_queue_timeout.mutable_scheduling()->set_queue_timeout_ms(50);
  const grpc::Status queue_timeout = rig.Generate(with_queue_timeout).status;
  EXPECT_EQ(queue_timeout.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_NE(queue_timeout.error_message().find("queue_timeout_ms"), std::string::npos);
  pb::GenerateRequest with_total_timeout = request;
  with_total_timeout.mutable_scheduling()->set_total_timeout_ms(50);
  EXPECT_EQ(rig.Generate(with_total_timeout).status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(arrived(4));  // and gone: the worker finds out later
  cancelled.context.TryCancel();
  EXPECT_EQ(cancelled.Finish().error_code(), StatusCode::CANCELLED);

  pb::GenerateRequest named = request;
  named.set_request_id("mine");
  Call aborted(rig.stub(), named);
  EXPECT_TRUE(arrived(5));
  // No place is left.
  const grpc::Status full = rig.Generate(request).status;
  EXPECT_EQ(full.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(full.error_message().find("4 grammars wait"), std::string::npos)
      << full.error_message();
  grpc::ClientContext context;
  pb::AbortRequest abort;
  abort.add_request_ids("mine");
  pb::AbortResponse response;
  EXPECT_TRUE(rig.stub().Abort(&context, abort, &response).ok());
  EXPECT_EQ(response.aborted_request_ids_size(), 1);
  EXPECT_EQ(aborted.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().cancelled == 2; }));
  EXPECT_EQ(rig.daemon().edge().counts().deadline, 2u);

  SayText(rig, "abc");
  worker.Open();
  EXPECT_TRUE(first.Finish().ok()) << first.answer.status.error_message();
  EXPECT_EQ(first.answer.texts.at(0), "abc");
  EXPECT_TRUE(arrived(0));
  rig.executor.Say(Echo);
  rig.ExpectIdle();
  rig.Probe();
}

TEST(GuidedTest, ADrainRefusesWhatIsBeingCompiled) {
  Rig rig;
  GatedWorker worker(rig);
  Call call(rig.stub(), Guided([](pb::GuidedDecoding& g) { g.set_regex("abc"); }));
  EXPECT_TRUE(rig.Eventually([&] { return worker.num_jobs() == 1; }));
  rig.daemon().Drain(milliseconds(60000));
  EXPECT_EQ(call.Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(rig.daemon().edge().counts().refused, 1u);
  EXPECT_TRUE(rig.daemon().Wait().ok());  // nothing is left to wait for
}

TEST(GrammarWorkerTest, AModelWithoutAVocabularyForItIsToldSo) {
  GrammarWorker worker([]() -> absl::StatusOr<std::unique_ptr<GrammarCompiler>> {
    return InvalidArgument("no such vocabulary");
  });
  for (int i = 0; i < 2; ++i) {
    std::promise<GrammarWorker::Result> told;
    ASSERT_TRUE(
        worker
            .Compile({}, std::make_shared<std::atomic<bool>>(false),
                     [&](GrammarWorker::Result result) { told.set_value(std::move(result)); })
            .ok());
    const GrammarWorker::Result result = told.get_future().get();
    EXPECT_EQ(result.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_NE(result.status().message().find("no such vocabulary"), std::string::npos);
  }
}

}  // namespace
}  // namespace quire::server_test
