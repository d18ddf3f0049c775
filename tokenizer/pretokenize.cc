#include "tokenizer/pretokenize.h"

#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

struct Part {
  Span span;
  bool is_match;
};

// Covers [0, size) with matches and the gaps between them.
std::vector<Part> FillGaps(const std::vector<Span>& matches, size_t size, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t end = 0;
  for (const Span& m : matches) {
    if (m.begin > end) parts.push_back({{end, m.begin}, invert});
    parts.push_back({m, !invert});
    end = m.end;
  }
  if (end < size) parts.push_back({{end, size}, invert});
  return parts;
}

void Append(Span span, size_t offset, std::vector<Span>& out) {
  if (span.begin < span.end) out.push_back({span.begin + offset, span.end + offset});
}

// Joins runs of parts: `joins(i)` says that part i continues the piece of part i - 1.
template <typename Fn>
void AppendJoined(const std::vector<Part>& parts, size_t offset, std::vector<Span>& out, Fn joins) {
  for (size_t i = 0; i < parts.size();) {
    Span span = parts[i].span;
    for (++i; i < parts.size() && joins(i); ++i) span.end = parts[i].span.end;
    Append(span, offset, out);
  }
}

void ApplyBehavior(const std::vector<Part>& parts, SplitBehavior behavior, size_t offset,
                   std::vector<Span>& out) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const Part& p : parts) {
        if (!p.is_match) Append(p.span, offset, out);
      }
      return;
    case SplitBehavior::kIsolated:
      for (const Part& p : parts) Append(p.span, offset, out);
      return;
    case SplitBehavior::kContiguous:
      AppendJoined(parts, offset, out,
                   [&](size_t i) { return parts[i].is_match == parts[i - 1].is_match; });
      return;
    case SplitBehavior::kMergedWithPrevious:
      // Only the first of several neighbouring matches is merged.
      AppendJoined(parts, offset, out,
                   [&](size_t i) { return parts[i].is_match && !parts[i - 1].is_match; });
      return;
    case SplitBehavior::kMergedWithNext:
      // Only the last of several neighbouring matches is merged.
      AppendJoined(parts, offset, out,
                   [&](size_t i) { return parts[i - 1].is_match && !parts[i].is_match; });
      return;
  }
}

absl::Status SplitPiece(std::string_view piece, const SplitPattern& pattern, SplitBehavior behavior,
                        bool invert, size_t offset, std::vector<Span>& matches,
                        std::vector<Span>& out) {
  matches.clear();
  RETURN_IF_ERROR(pattern.FindMatches(piece, matches));
  ApplyBehavior(FillGaps(matches, piece.size(), invert), behavior, offset, out);
  return absl::OkStatus();
}

absl::Status RunStep(const SplitStep& step, PieceList& list) {
  std::vector<Span> out;
  std::vector<Span> matches;
  out.reserve(list.pieces.size());
  for (const Span& piece : list.pieces) {
    const std::string_view text =
        std::string_view(list.text).substr(piece.begin, piece.end - piece.begin);
    RETURN_IF_ERROR(
        SplitPiece(text, step.pattern, step.behavior, step.invert, piece.begin, matches, out));
  }
  list.pieces = std::move(out);
  return absl::OkStatus();
}

// Rewrites every piece by `rewrite(piece, out)`, which appends the new text.
template <typename Fn>
void RewritePieces(PieceList& list, Fn rewrite) {
  std::string text;
  text.reserve(list.text.size());
  for (Span& piece : list.pieces) {
    const size_t begin = text.size();
    rewrite(std::string_view(list.text).substr(piece.begin, piece.end - piece.begin), text);
    piece = {begin, text.size()};
  }
  list.text = std::move(text);
}

absl::Status RunStep(const ByteLevelStep& step, PieceList& list) {
  if (step.add_prefix_space) {
    RewritePieces(list, [](std::string_view piece, std::string& out) {
      if (piece[0] != ' ') out += ' ';
      out += piece;
    });
  }
  if (step.use_regex) {
    RETURN_IF_ERROR(RunStep(SplitStep{SplitPattern::Known(KnownPattern::kGpt2)}, list));
  }
  if (step.map_bytes) {
    RewritePieces(list, [](std::string_view piece, std::string& out) { out += MapBytes(piece); });
  }
  return absl::OkStatus();
}

absl::Status RunStep(const MetaspaceStep& step, PieceList& list) {
  bool first = list.at_text_start && !list.pieces.empty() && list.pieces[0].begin == 0;
  RewritePieces(list, [&](std::string_view piece, std::string& out) {
    const bool starts_with_it = piece[0] == ' ' || piece.substr(0, step.replacement.size()) ==
                                                       std::string_view(step.replacement);
    const bool prepend = step.prepend == MetaspaceStep::Prepend::kAlways ||
                         (step.prepend == MetaspaceStep::Prepend::kFirst && first);
    if (prepend && !starts_with_it) out += step.replacement;
    for (const char c : piece) {
      if (c == ' ') {
        out += step.replacement;
      } else {
        out += c;
      }
    }
    first = false;
  });
  if (!step.split) return absl::OkStatus();
  return RunStep(SplitStep{SplitPattern::Literal(step.replacement), SplitBehavior::kMergedWithNext},
                 list);
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {
  if (steps_.empty()) return;
  if (auto* last = std::get_if<ByteLevelStep>(&steps_.back())) {
    last->map_bytes = false;
    bytes_are_symbols_ = true;
  }
}

absl::Status PreTokenizer::Run(PieceList& list) const {
  list.pieces.clear();
  if (!list.text.empty()) list.pieces.push_back({0, list.text.size()});
  for (const Step& step : steps_) {
    RETURN_IF_ERROR(std::visit([&](const auto& s) { return RunStep(s, list); }, step));
  }
  return absl::OkStatus();
}

}  // namespace quire
