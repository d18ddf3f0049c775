// server/convert_prompt.h -- what a request's input becomes: the tokens of its prompt.
//
// Used by convert.cc; any thread. Nothing here blocks except the chat template.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "server/served_model.h"

namespace quire {

namespace pb = ::quire::v1;

// ERRORS: kInvalidArgument: an id that the model doesn't have.
absl::Status CheckId(uint32_t id, const ServedModel& model, std::string_view path, int i);

template <typename Ids>
absl::Status ReadIds(const Ids& ids, const ServedModel& model, std::string_view path,
                     std::vector<TokenId>& out) {
  out.reserve(static_cast<size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    RETURN_IF_ERROR(CheckId(ids[i], model, path, i));
    out.push_back(static_cast<TokenId>(ids[i]));
  }
  return absl::OkStatus();
}

// The fields of GenerateRequest that shape the prompt but are cheap to check, before it is
// tokenized. ERRORS: kInvalidArgument naming the field.
absl::Status CheckPromptFields(const pb::GenerateRequest& r);

// The prompt: tokenized, rendered by the chat template, cut as truncate_prompt_tokens says. Its
// length is not checked here. ERRORS: kInvalidArgument naming the field, what the template says.
absl::Status ReadPrompt(const pb::GenerateRequest& r, const ServedModel& model,
                        std::vector<TokenId>& prompt);

}  // namespace quire
