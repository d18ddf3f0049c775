// server/options.cc -- see options.h. Everything here walks VisitFields.
#include "server/options.h"

#include <algorithm>
#include <charconv>
#include <type_traits>

#include "kernels/attention_choice.h"
#include "kernels/attention_library.h"
#include "kernels/cpu_isa.h"
#include "server/access/security_options.h"
#include "server/metrics/buckets.h"

namespace quire {
namespace {

template <typename T>
bool ParseNumber(std::string_view text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

// A whole number that fits the member's type; the range comes later.
template <typename T>
absl::Status ParseInto(const Setting& s, const OptionInfo& info, T& member) {
  const auto bad = [&](std::string_view wanted) {
    return InvalidArgument("{}: {}={} is not {} ({})", s.where, s.name, s.value, wanted, info.unit);
  };
  if constexpr (std::is_same_v<T, std::string>) {
    if (!info.choices.empty()) {
      const std::string list = fmt::format("|{}|", info.choices);
      if (s.value.empty() || list.find(fmt::format("|{}|", s.value)) == std::string::npos) {
        return InvalidArgument("{}: {}={} is not one of {}", s.where, s.name, s.value,
                               info.choices);
      }
    }
    member = s.value;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (s.is_text || (s.value != "true" && s.value != "false")) return bad("true or false");
    member = s.value == "true";
  } else {
    T value{};
    if (s.is_text || !ParseNumber(s.value, value)) {
      return bad(std::is_integral_v<T> ? "a whole number" : "a number");
    }
    const double number = static_cast<double>(value);
    if (!(number >= info.min && number <= info.max)) {  // written so that NaN fails
      return InvalidArgument("{}: {}={} is outside [{}, {}] ({})", s.where, s.name, s.value,
                             info.min, info.max, info.unit);
    }
    member = value;
  }
  return absl::OkStatus();
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t keep = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({keep, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string FlagOf(std::string_view name) {
  std::string flag = "--";
  for (const char c : name) flag += c == '_' ? '-' : c;
  return flag;
}

std::string VariableOf(std::string_view name) {
  std::string variable = "QUIRE_";
  for (const char c : name) variable += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return variable;
}

std::string ValueOf(const ServerOptions& options, std::string_view name) {
  std::string text;
  ServerOptions::VisitFields(options, [&](const OptionInfo& info, const auto& member) {
    if (info.name == name) text = fmt::format("{}", member);
  });
  return text;
}

std::vector<std::string> OptionNames() {
  std::vector<std::string> names;
  const ServerOptions defaults;
  ServerOptions::VisitFields(defaults, [&](const OptionInfo& info, const auto&) {
    names.emplace_back(info.name);
    if (!info.alias.empty()) names.emplace_back(info.alias);
  });
  return names;
}

bool IsBoolOption(std::string_view name) {
  bool is_bool = false;
  const ServerOptions defaults;
  ServerOptions::VisitFields(defaults, [&](const OptionInfo& info, const auto& member) {
    if (info.name == name || info.alias == name) {
      is_bool = std::is_same_v<std::decay_t<decltype(member)>, bool>;
    }
  });
  return is_bool;
}

std::string Nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

absl::Status ApplySetting(const Setting& setting, ServerOptions& options) {
  bool found = false;
  absl::Status status;
  ServerOptions::VisitFields(options, [&](const OptionInfo& info, auto& member) {
    if (info.name != setting.name && (info.alias.empty() || info.alias != setting.name)) return;
    found = true;
    status = ParseInto(setting, info, member);
  });
  if (!found) {
    return InvalidArgument("{}: {} is not a known option; did you mean {}?", setting.where,
                           setting.name, Nearest(setting.name, OptionNames()));
  }
  return status;
}

absl::Status Validate(const ServerOptions& o) {
  if (o.model.empty()) {
    return InvalidArgument(
        "model is not set; give a path by --model, QUIRE_MODEL or the YAML key model");
  }
  if (o.host.empty()) return InvalidArgument("host= is empty; 127.0.0.1 is the default");
  if (std::string_view("8|16|32|64|128").find(std::to_string(o.block_size)) ==
          std::string_view::npos ||
      (o.block_size & (o.block_size - 1)) != 0) {
    return InvalidArgument("block_size={} is not one of 8, 16, 32, 64, 128", o.block_size);
  }
  if (o.max_num_batched_tokens < o.max_num_seqs) {
    return InvalidArgument(
        "max_num_batched_tokens={} is below max_num_seqs={}: a step computes a token of each "
        "running sequence; raise the former or lower the latter",
        o.max_num_batched_tokens, o.max_num_seqs);
  }
  if (o.num_blocks > 0 && o.kv_cache_memory_bytes > 0) {
    return InvalidArgument(
        "num_blocks={} and kv_cache_memory_bytes={} both give the size of the pool; drop one",
        o.num_blocks, o.kv_cache_memory_bytes);
  }
  const int64_t pool_tokens = int64_t{o.num_blocks} * o.block_size;
  if (o.num_blocks > 0 && o.max_model_len > pool_tokens) {
    return InvalidArgument(
        "max_model_len={} does not fit into num_blocks={} * block_size={} = {} tokens; raise "
        "num_blocks or lower max_model_len",
        o.max_model_len, o.num_blocks, o.block_size, pool_tokens);
  }
  if (o.max_num_blocks > 0 && o.num_blocks > o.max_num_blocks) {
    return InvalidArgument(
        "num_blocks={} exceeds max_num_blocks={}; raise the latter, or 0 for what the memory "
        "allows",
        o.num_blocks, o.max_num_blocks);
  }
  if (o.preemption_mode != "recompute" && o.host_cache_memory_bytes == 0) {
    return InvalidArgument(
        "preemption_mode={} needs room: set host_cache_memory_bytes, or preemption_mode=recompute",
        o.preemption_mode);
  }
  if (o.speculation == "draft" && o.draft_model.empty()) {
    return InvalidArgument("speculation=draft needs a draft_model; name one, or choose ngram");
  }
  if (o.speculation != "none" && o.num_speculative_tokens == 0) {
    return InvalidArgument(
        "speculation={} with num_speculative_tokens=0 guesses nothing; raise the latter, or "
        "speculation=none",
        o.speculation);
  }
  if (!o.draft_model.empty() && o.num_speculative_tokens == 0) {
    return InvalidArgument(
        "draft_model={} with num_speculative_tokens=0 would take memory for nothing; drop one",
        o.draft_model);
  }
  if (o.cache_directory_bytes > 0 && o.cache_directory.empty()) {
    return InvalidArgument("cache_directory_bytes={} needs a cache_directory; name one",
                           o.cache_directory_bytes);
  }
  if (o.cache_directory_bytes > 0 && o.host_cache_memory_bytes == 0) {
    return InvalidArgument(
        "cache_directory_bytes={} keeps what the host tier gives up, and there is none; set "
        "host_cache_memory_bytes, too",
        o.cache_directory_bytes);
  }
  if (o.kv_events && !o.enable_prefix_caching) {
    return InvalidArgument(
        "kv_events=true with enable_prefix_caching=false has nothing to tell; drop one");
  }
  if (o.kv_events && o.kv_events_endpoint.empty() && !o.kv_events_replay_endpoint.empty()) {
    return InvalidArgument(
        "kv_events_replay_endpoint={} without a kv_events_endpoint has nothing to repeat; set the "
        "latter, too",
        o.kv_events_replay_endpoint);
  }
  if (o.max_model_len == 1) {
    return InvalidArgument(
        "max_model_len=1 leaves no room for a prompt and a new token; 2 is least");
  }
  if (o.max_model_len > 0 && o.default_max_tokens >= o.max_model_len) {
    return InvalidArgument(
        "default_max_tokens={} leaves no room for a prompt in max_model_len={}; lower it, or 0 for "
        "what is left",
        o.default_max_tokens, o.max_model_len);
  }
  RETURN_IF_ERROR(CheckSecurity(o));
  RETURN_IF_ERROR(ReadBuckets(o.histogram_buckets, o.max_model_len).status());
  if (!o.attention_library.empty()) {
    RETURN_IF_ERROR(kernels::LoadAttentionLibrary(o.attention_library).status());
  }
  RETURN_IF_ERROR(kernels::ParseAttention(o.attention).status());
  return kernels::SelectIsa(o.cpu_isa);
}

}  // namespace quire
