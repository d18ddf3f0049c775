// server/openai/sampling_fields.h -- what completions, chats and responses have in common:
// sampling, stopping, beams, scheduling and the names that vLLM adds to OpenAI's. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "server/openai/fields.h"
#include "server/served_model.h"

namespace quire {

namespace pb = ::quire::v1;

// Into `out`; errors stay in `fields`. Names that are known and not offered are refused; unknown
// ones are ignored, as clients send all sorts.
void ReadSamplingFields(Fields& fields, const ServedModel& model, pb::GenerateRequest& out);

// response_format, structured_outputs and guided_...; raw: the body's text, whose order of keys
// counts in schemas. Returns the name of the field that asks, empty if none does.
std::string ReadGuidedFields(Fields& fields, std::string_view raw, pb::GenerateRequest& out);

// Ids as the proto has them. ERRORS: what is no id at all; the vocabulary is checked later.
bool ToTokenIds(Fields& fields, std::string_view name, const std::vector<int64_t>& numbers,
                google::protobuf::RepeatedField<uint32_t>* out);

}  // namespace quire
