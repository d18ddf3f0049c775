// server/convert_decoding.cc -- see convert_decoding.h.
#include "server/convert_decoding.h"

#include <string>
#include <utility>

#include "server/convert_fields.h"

namespace quire {
namespace {

constexpr int32_t kMaxBestOf = 128;        // as n
constexpr size_t kMaxSeparatorBytes = 64;  // of JSON

absl::Status ReadEarlyStopping(pb::EarlyStopping value, EarlyStopping& out) {
  switch (value) {
    case pb::EARLY_STOPPING_UNSPECIFIED:
    case pb::EARLY_STOPPING_HEURISTIC:
      out = EarlyStopping::kHeuristic;
      return absl::OkStatus();
    case pb::EARLY_STOPPING_NEVER:
      out = EarlyStopping::kNever;
      return absl::OkStatus();
    case pb::EARLY_STOPPING_FIRST:
      out = EarlyStopping::kFirst;
      return absl::OkStatus();
    default:
      return InvalidArgument("beam.early_stopping={} must be in [0, 3]", static_cast<int>(value));
  }
}

absl::Status ReadBeam(const pb::GenerateRequest& r, Request& request, const Generation& g) {
  BeamParams& beam = request.beam;
  ReadFields(r, beam);
  RETURN_IF_ERROR(ReadEarlyStopping(r.beam().early_stopping(), beam.early_stopping));
  if (r.has_beam() && !r.beam().has_beam_width()) {
    return InvalidArgument("beam.beam_width is not set; set it to the number of beams");
  }
  RETURN_IF_ERROR(WithPath(Validate(beam, request.sampling, request.stop), r));
  if (beam.on() && !g.stop_strings.empty()) {
    return InvalidArgument(
        "stopping.stop has {} strings, limit is 0 with beam_width={}: beams end by tokens; use "
        "stop_token_ids",
        g.stop_strings.size(), beam.beam_width);
  }
  return absl::OkStatus();
}

absl::Status ReadBestOf(const pb::SamplingParams& s, Request& request, Generation& g) {
  if (!s.has_best_of()) return absl::OkStatus();
  SamplingParams& sampling = request.sampling;
  const int32_t best_of = s.best_of();
  if (best_of < 1 || best_of > kMaxBestOf) {
    return InvalidArgument("sampling.best_of={} is outside [1, {}]; the default is n", best_of,
                           kMaxBestOf);
  }
  if (request.beam.on()) {
    return InvalidArgument(
        "sampling.best_of={} can't be had with beam_width={}, which returns the best anyway; leave "
        "it out and ask for several by num_return_sequences",
        best_of, request.beam.beam_width);
  }
  if (best_of < sampling.n) {
    return InvalidArgument("sampling.best_of={} is below n={}; raise it or lower n", best_of,
                           sampling.n);
  }
  if (best_of > 1 && sampling.greedy()) {
    return InvalidArgument(
        "sampling.best_of={} needs a temperature above 0, or all outputs are the same; raise "
        "temperature or leave best_of out",
        best_of);
  }
  g.num_best = sampling.n;
  sampling.n = best_of;
  if (sampling.num_logprobs < 0) {
    sampling.num_logprobs = 0;
    g.hide_logprobs = sampling.logprob_token_ids.empty();
  }
  return absl::OkStatus();
}

absl::Status ReadSpeculation(const pb::GenerateRequest& r, const ServedModel& model,
                             Request& request) {
  SpeculationParams& speculation = request.speculation;
  ReadFields(r, speculation);
  switch (r.spec().method()) {
    case pb::SPECULATION_METHOD_UNSPECIFIED:
      speculation.method = SpeculationMethod::kServerDefault;
      break;
    case pb::SPECULATION_METHOD_NONE:
      speculation.method = SpeculationMethod::kNone;
      break;
    case pb::SPECULATION_METHOD_NGRAM:
      speculation.method = SpeculationMethod::kNgram;
      break;
    case pb::SPECULATION_METHOD_SUFFIX:
      speculation.method = SpeculationMethod::kSuffix;
      break;
    case pb::SPECULATION_METHOD_DRAFT:
      speculation.method = SpeculationMethod::kDraft;
      if (!model.has_draft_model) {
        return InvalidArgument(
            "spec.method=draft needs a draft model, and the server has none; use ngram or suffix");
      }
      break;
    default:
      return InvalidArgument("spec.method={} must be in [0, 4]",
                             static_cast<int>(r.spec().method()));
  }
  speculation.rejection_sampling = r.spec().rejection_sampling();
  if (r.spec().has_enable() && !r.spec().enable()) {
    if (r.spec().method() > pb::SPECULATION_METHOD_NONE) {
      return InvalidArgument("spec.enable=false and spec.method={} contradict each other",
                             static_cast<int>(r.spec().method()));
    }
    speculation.method = SpeculationMethod::kNone;
  }
  return WithPath(Validate(speculation, request.beam), r);
}

// White space around one `mark`: anything else would make the output no JSON.
absl::Status CheckSeparator(std::string_view name, const std::string& text, char mark) {
  const bool is_short = text.size() <= kMaxSeparatorBytes;
  const std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (is_short && first != std::string::npos && text[first] == mark &&
      text.find_last_not_of(kSpace) == first) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "guided.json.{}='{}' must be '{}' with white space around, at most {} bytes", name,
      text.substr(0, kMaxSeparatorBytes), mark, kMaxSeparatorBytes);
}

absl::Status ReadJsonOptions(const pb::GuidedDecoding& guided, GrammarSpec& spec) {
  const bool is_schema = spec.kind == GrammarSpec::Kind::kJsonSchema;
  if (!is_schema && spec.kind != GrammarSpec::Kind::kJsonObject) {
    return InvalidArgument("guided.json is for json_schema and json_object; leave it out");
  }
  const pb::JsonOptions& json = guided.json();
  if (json.has_any_whitespace()) spec.any_whitespace = json.any_whitespace();
  if (json.has_max_whitespace() && !spec.any_whitespace) {
    return InvalidArgument(
        "guided.json.max_whitespace={} has no effect with any_whitespace=false; leave it out",
        json.max_whitespace());
  }
  if (json.has_max_whitespace()) spec.max_whitespace = json.max_whitespace();
  if (json.has_strict() && !is_schema) {
    return InvalidArgument("guided.json.strict={} is for json_schema; leave it out", json.strict());
  }
  if (json.has_strict()) spec.strict = json.strict();
  if (spec.any_whitespace &&
      (json.has_indent() || json.has_item_separator() || json.has_key_separator())) {
    return InvalidArgument(
        "guided.json.{} needs any_whitespace=false, which is true; set it or leave it out",
        json.has_indent()           ? "indent"
        : json.has_item_separator() ? "item_separator"
                                    : "key_separator");
  }
  if (json.has_indent()) spec.indent = json.indent();
  if (json.has_item_separator()) {
    RETURN_IF_ERROR(CheckSeparator("item_separator", json.item_separator(), ','));
    spec.item_separator = json.item_separator();
  }
  if (json.has_key_separator()) {
    RETURN_IF_ERROR(CheckSeparator("key_separator", json.key_separator(), ':'));
    spec.key_separator = json.key_separator();
  }
  return absl::OkStatus();
}

// What the compiler finds wrong later is told then; see GrammarWorker.
absl::Status ReadGuided(const pb::GenerateRequest& r, const Request& request, Generation& g) {
  if (!r.has_guided()) return absl::OkStatus();
  const pb::GuidedDecoding& guided = r.guided();
  GrammarSpec spec;
  switch (guided.guide_case()) {
    case pb::GuidedDecoding::kJsonSchema:
      spec.kind = GrammarSpec::Kind::kJsonSchema;
      spec.text = guided.json_schema();
      break;
    case pb::GuidedDecoding::kJsonObject:
      if (!guided.json_object()) {
        return InvalidArgument("guided.json_object=false asks for nothing; leave guided out");
      }
      spec.kind = GrammarSpec::Kind::kJsonObject;
      break;
    case pb::GuidedDecoding::kRegex:
      spec.kind = GrammarSpec::Kind::kRegex;
      spec.text = guided.regex();
      break;
    case pb::GuidedDecoding::kGrammar:
      spec.kind = GrammarSpec::Kind::kEbnf;
      spec.text = guided.grammar();
      break;
    case pb::GuidedDecoding::kChoice:
      spec.kind = GrammarSpec::Kind::kChoice;
      spec.choices.assign(guided.choice().texts().begin(), guided.choice().texts().end());
      break;
    case pb::GuidedDecoding::kStructuralTag:
      spec.kind = GrammarSpec::Kind::kStructuralTag;
      spec.text = guided.structural_tag();
      break;
    case pb::GuidedDecoding::GUIDE_NOT_SET:
      return InvalidArgument(
          "guided has no guide; give json_schema, json_object, regex, grammar, choice or "
          "structural_tag");
  }
  if (guided.has_json()) RETURN_IF_ERROR(ReadJsonOptions(guided, spec));
  // A beam that is at the end of the grammar would have no candidates and be lost.
  if (request.beam.on() && request.stop.eos_token_ids.empty()) {
    return InvalidArgument(
        "guided with beam_width={} needs the model's end tokens, by which beams end; leave "
        "stopping.ignore_eos out",
        request.beam.beam_width);
  }
  g.grammar = std::move(spec);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadDecoding(const pb::GenerateRequest& r, const ServedModel& model, Request& request,
                          Generation& generation) {
  RETURN_IF_ERROR(ReadBeam(r, request, generation));
  RETURN_IF_ERROR(ReadBestOf(r.sampling(), request, generation));
  RETURN_IF_ERROR(ReadSpeculation(r, model, request));
  return ReadGuided(r, request, generation);
}

}  // namespace quire
