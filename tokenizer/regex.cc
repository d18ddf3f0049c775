#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include <algorithm>

#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
// Backtracking steps from one start position. Known pre-tokenizer patterns need a handful.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kDepthLimit = 100'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr size_t kJitStackBytes = 1 << 20;
// A search call looks at this many start positions, then the CPU time is looked at again.
constexpr size_t kStartsPerCall = 1024;
constexpr int64_t kCpuNsFloor = 1'000'000'000;
constexpr int64_t kCpuNsPerByte = 2'000;

struct CodeDeleter {
  void operator()(const void* p) const {
    pcre2_code_free(const_cast<pcre2_code*>(static_cast<const pcre2_code*>(p)));
  }
};

// What PCRE2 needs to run; one for each thread that tokenizes with a foreign pattern.
class Workspace {
 public:
  Workspace()
      : match_data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)) {
    CHECK(match_data_ != nullptr && context_ != nullptr && stack_ != nullptr, "out of memory");
    pcre2_set_match_limit(context_, kMatchLimit);
    pcre2_set_depth_limit(context_, kDepthLimit);
    pcre2_set_heap_limit(context_, kHeapLimitKib);
    pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    pcre2_match_data_free(match_data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }
  pcre2_match_data* match_data() const { return match_data_; }
  pcre2_match_context* context() const { return context_; }

 private:
  pcre2_match_data* match_data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

int64_t ThreadCpuNs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return fmt::format("{}", code);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return InvalidArgument("pattern has {} bytes, limit is {}", pattern.size(), kMaxPatternBytes);
  }
  ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern));
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C,
      &error, &offset, context.get());
  if (code == nullptr) {
    return InvalidArgument("pattern='{}' is not a valid regular expression: {}", pattern,
                           PcreMessage(error));
  }
  // Without JIT (not supported, or no executable memory) the interpreter gives the same matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  Regex regex;
  regex.pattern_ = std::string(pattern);
  regex.code_ = std::shared_ptr<const void>(static_cast<const void*>(code), CodeDeleter());
  return regex;
}

absl::Status Regex::FindMatches(std::string_view text, std::vector<Span>& out) const {
  static thread_local const Workspace workspace;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int64_t cpu_limit =
      ThreadCpuNs() + kCpuNsFloor + kCpuNsPerByte * static_cast<int64_t>(text.size());
  size_t from = 0;
  size_t last_match_end = std::string_view::npos;
  size_t starts = 0;
  while (from <= text.size()) {
    size_t limit = std::min(text.size(), from + kStartsPerCall);
    pcre2_set_offset_limit(workspace.context(), limit);
    const int rc = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                               workspace.match_data(), workspace.context());
    starts += rc >= 0 ? 1 : kStartsPerCall;
    if (rc == PCRE2_ERROR_NOMATCH) {
      if (limit == text.size()) break;
      // Starts up to and including `limit` have been tried. Go on at the next character.
      from = limit + 1;
      while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
    } else if (rc < 0) {
      return Error(absl::StatusCode::kResourceExhausted,
                   "pattern='{}' exceeds its matching limit after byte {}: {}", pattern_, from,
                   PcreMessage(rc));
    } else {
      const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(workspace.match_data());
      const Span match{ovector[0], ovector[1]};
      if (match.end < match.begin) {  // \K in a look-ahead; the translation refuses \K
        return InvalidArgument("pattern='{}' gives a match that ends before it begins", pattern_);
      }
      if (match.begin == match.end && match.end == last_match_end) {
        from = match.end < text.size() ? match.end + DecodeChar(text, match.end).length
                                       : text.size() + 1;
      } else {
        out.push_back(match);
        from = match.end;
        last_match_end = match.end;
      }
    }
    if (starts >= kStartsPerCall) {
      starts = 0;
      if (ThreadCpuNs() > cpu_limit) {
        return Error(absl::StatusCode::kResourceExhausted,
                     "pattern='{}' exceeds its CPU time limit after byte {}", pattern_, from);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
