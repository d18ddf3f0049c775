// sampling/grammar_check.h -- what is wrong with a GrammarSpec, before XGrammar sees it.
//
// XGrammar recurses as deep as a text is nested, and ignores keywords of JSON Schema that it does
// not know: a client would then get text that does not validate. Both are refused here, by the path
// of the schema or the offset of the text. Pure; thread: any.
#pragma once

#include <string_view>

#include "base/status.h"
#include "sampling/grammar.h"

namespace quire {

// ERRORS: kInvalidArgument naming field, place, value and limit.
absl::Status CheckGrammarSpec(const GrammarSpec& spec, const GrammarLimits& limits);

// `schema` as a part of the field `field`. What XGrammar checks itself is left to it.
absl::Status CheckJsonSchema(std::string_view field, std::string_view schema,
                             const GrammarLimits& limits);

}  // namespace quire
