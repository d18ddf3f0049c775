// server/openai/call.h -- a body of OpenAI's API, read: requests for the engine, and who writes the
// answer. One reader for each route; pure, any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "server/field_names.h"
#include "server/openai/answer_writer.h"
#include "server/served_model.h"

namespace quire {

namespace pb = ::quire::v1;

struct OpenAiCall {
  std::vector<pb::GenerateRequest> requests;  // one for each prompt; without request_id
  bool stream = false;
  std::unique_ptr<AnswerWriter> writer;
  FieldNames names;  // of what the requests' fields are called in this body
};

// info.id: without a prefix; the reader puts its own before it. ERRORS: kInvalidArgument naming the
// field; others when the engine's own checks see the requests.
using CallReader = absl::StatusOr<OpenAiCall> (*)(std::string_view body, const ServedModel& model,
                                                  AnswerInfo info);
absl::StatusOr<OpenAiCall> ReadCompletion(std::string_view body, const ServedModel& model,
                                          AnswerInfo info);
absl::StatusOr<OpenAiCall> ReadChat(std::string_view body, const ServedModel& model,
                                    AnswerInfo info);
absl::StatusOr<OpenAiCall> ReadResponse(std::string_view body, const ServedModel& model,
                                        AnswerInfo info);

// A body as an object. ERRORS: kInvalidArgument.
absl::StatusOr<Json> ParseBody(std::string_view body);

// What a body calls fields that have several names, or whose name depends on the route.
struct BodyNames {
  std::string max_tokens = "max_tokens";
  std::string num_logprobs = "logprobs";
  std::string guide;         // what asks for a grammar; empty: tools
  bool has_best_of = false;  // beams are best_of then, else n
};
FieldNames OpenAiFieldNames(const BodyNames& body);

class Fields;
// stream, stream_options, return_token_ids ...: how the answer is told.
void ReadStyle(Fields& fields, AnswerStyle& style);

}  // namespace quire
