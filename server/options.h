// server/options.h -- every option of the daemon, declared once.
//
// VisitFields is the only list. From it come the flag (--max-num-seqs), the environment variable
// (QUIRE_MAX_NUM_SEQS), the YAML key (max_num_seqs), the help text, the range check and the lines
// of the start-up log. A new option is one member and one visit() line.
//
// Precedence: flag, then environment, then YAML, then the default here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

// What is to be known of an option besides its member.
struct OptionInfo {
  std::string_view name;  // as in YAML
  std::string_view unit;  // for people: "tokens", "bytes", "path" ...
  std::string_view help;  // one sentence without a full stop
  double min = 0;         // numbers only, inclusive
  double max = 0;
  std::string_view alias = {};    // another name that operators know
  std::string_view choices = {};  // strings only: "a|b|c"; empty = any
};

struct ServerOptions {
  // What is served.
  std::string model;
  std::string served_model_name;
  std::string chat_template;
  std::string python = "python3";
  // Limits of one request.
  int32_t max_model_len = 0;
  int32_t default_max_tokens = 0;
  // Limits of all requests together.
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 512;
  int32_t max_queued_requests = 1024;
  // Who runs next, and what a step computes.
  std::string scheduling_policy = "fcfs";
  int32_t priority_aging_ms = 10'000;
  int32_t shortest_aging_us_per_token = 10'000;
  double fair_prompt_weight = 0.5;
  double watermark = 0.01;
  int32_t long_prefill_token_threshold = 0;
  double target_itl_ms = 0;
  // Guesses.
  std::string speculation = "none";
  int32_t num_speculative_tokens = 16;
  int32_t suffix_cache_tokens = 1 << 20;
  std::string draft_model;
  int32_t draft_num_blocks = 1024;
  // The block pool.
  int32_t block_size = 16;
  int32_t num_blocks = 0;
  int64_t kv_cache_memory_bytes = 0;
  double memory_utilization = 0.8;
  int32_t prefault_mib = 256;
  std::string kv_cache_dtype = "auto";
  bool enable_prefix_caching = true;
  std::string prefix_hash_algorithm = "xxh3";
  int32_t max_num_blocks = 0;
  double max_pinned_share = 0.5;
  // Below the pool.
  std::string preemption_mode = "recompute";
  int64_t host_cache_memory_bytes = 0;
  std::string cache_directory;
  int64_t cache_directory_bytes = 0;
  // Compute.
  std::string attention = "flash";
  std::string compute = "auto";
  std::string quantization = "none";
  std::string attention_library;
  std::string cpu_isa = "auto";
  int32_t num_threads = 0;
  bool profile_ops = false;
  std::string trace_file;
  // Network.
  std::string host = "127.0.0.1";
  int32_t port = 50051;
  int64_t max_message_bytes = 16 << 20;
  int64_t max_stream_buffer_bytes = 1 << 20;
  std::string http_host;
  int32_t http_port = 8000;
  std::string http_allowed_origins;
  int32_t http_max_connections = 8192;
  double http_keepalive_s = 75;
  double http_request_timeout_s = 30;
  double sse_keepalive_s = 15;
  bool http_dev_mode = false;
  double drain_timeout_s = 30;
  // Who is told what is cached.
  bool kv_events = false;
  std::string kv_events_endpoint = "tcp://*:5557";
  std::string kv_events_replay_endpoint;
  std::string kv_events_topic;
  int32_t kv_events_buffer_steps = 10'000;
  int32_t kv_events_hwm = 100'000;
  int32_t kv_events_max_queue_size = 100'000;
  std::string kv_events_encoding = "map";
  bool kv_events_int_hashes = true;
  int32_t kv_events_max_subscribers = 64;
  // Who may call.
  std::string api_key_file;
  bool open_reflection = false;
  bool cache_salt_per_tenant = false;
  std::string ssl_certfile;
  std::string ssl_keyfile;
  std::string ssl_ca_certs;
  std::string ssl_cert_reqs = "none";
  std::string admin_socket = "auto";
  std::string admin_host = "127.0.0.1";
  int32_t admin_port = -1;
  // Connections of gRPC.
  int32_t grpc_max_connections = 0;
  int32_t max_concurrent_streams = 4096;
  double keepalive_time_s = 60;
  double keepalive_timeout_s = 20;
  double min_ping_interval_s = 10;
  int32_t max_ping_strikes = 0;
  double max_connection_idle_s = 0;
  // What it tells.
  std::string log_level = "info";
  bool log_prompts = false;
  bool vllm_metric_names = true;
  bool legacy_metric_names = false;
  std::string histogram_buckets;

  // visit(OptionInfo, member)
  template <typename Self, typename Visitor>
  static void VisitFields(Self& o, Visitor&& visit) {
    constexpr double kMaxInt = 2147483647;
    visit(OptionInfo{"model", "path", "a .gguf file, or a folder with config.json and safetensors"},
          o.model);
    visit(OptionInfo{"served_model_name", "name", "what clients call it; empty: the file's name"},
          o.served_model_name);
    visit(
        OptionInfo{"chat_template", "path", "a Jinja file to use instead of the model's template"},
        o.chat_template);
    visit(OptionInfo{"python", "command", "the Python with jinja2 that renders chat templates"},
          o.python);
    visit(OptionInfo{"max_model_len", "tokens",
                     "prompt and new tokens of one request; 0: what the model and the pool allow",
                     0, kMaxInt},
          o.max_model_len);
    visit(OptionInfo{"default_max_tokens", "tokens",
                     "new tokens where a request names no limit; 0: what is left of max_model_len",
                     0, kMaxInt},
          o.default_max_tokens);
    visit(OptionInfo{"max_num_seqs", "sequences", "that run at the same time", 1, 4096},
          o.max_num_seqs);
    visit(OptionInfo{"max_num_batched_tokens", "tokens", "computed in one step, all requests", 1,
                     1 << 20},
          o.max_num_batched_tokens);
    visit(OptionInfo{"max_queued_requests", "requests",
                     "that wait to run; one more is refused with RESOURCE_EXHAUSTED", 1, 1 << 20},
          o.max_queued_requests);
    visit(OptionInfo{"scheduling_policy",
                     "policy",
                     "which waiting request runs next; no policy lets anybody wait for ever",
                     0,
                     0,
                     {},
                     "fcfs|priority|shortest_first|fair|prefix_aware"},
          o.scheduling_policy);
    visit(OptionInfo{"priority_aging_ms", "ms",
                     "policy priority: waiting so long is worth one level of priority", 1, kMaxInt},
          o.priority_aging_ms);
    visit(OptionInfo{"shortest_aging_us_per_token", "microseconds",
                     "policy shortest_first: how much later a request may come and still pass, for "
                     "each token that it is shorter",
                     1, 1'000'000},
          o.shortest_aging_us_per_token);
    visit(OptionInfo{"fair_prompt_weight", "weight",
                     "policy fair: what a tenant's prompt token counts, one of output being 1", 0,
                     1000},
          o.fair_prompt_weight);
    visit(OptionInfo{"watermark", "share",
                     "of the pool that starting a request leaves free for those that run", 0, 0.99},
          o.watermark);
    visit(OptionInfo{"long_prefill_token_threshold", "tokens",
                     "of one prompt in a step, at most, so that others get on beside it; 0: no cap",
                     0, 1 << 20},
          o.long_prefill_token_threshold);
    visit(OptionInfo{"target_itl_ms", "ms",
                     "between two tokens of a stream: prompts are cut smaller to keep to it; 0: no "
                     "goal",
                     0, 1e6},
          o.target_itl_ms);
    visit(OptionInfo{"speculation",
                     "method",
                     "guesses tokens ahead for requests that don't say; outputs stay the same bits",
                     0,
                     0,
                     {},
                     "none|ngram|suffix|draft"},
          o.speculation);
    visit(OptionInfo{"num_speculative_tokens", "tokens",
                     "guessed per output and step, at most; 0: none, whatever a request asks for",
                     0, 64},
          o.num_speculative_tokens);
    visit(OptionInfo{"suffix_cache_tokens", "tokens",
                     "of earlier outputs that speculation suffix remembers, all tenants together",
                     512, 1 << 28},
          o.suffix_cache_tokens);
    visit(OptionInfo{"draft_model", "path",
                     "a small model with the same tokenizer, for speculation draft; empty: none"},
          o.draft_model);
    visit(
        OptionInfo{"draft_num_blocks", "blocks",
                   "in the draft model's pool; sequences beyond it are computed again", 1, kMaxInt},
        o.draft_num_blocks);
    visit(OptionInfo{"block_size", "tokens", "per cache block: 8, 16, 32, 64 or 128", 8, 128},
          o.block_size);
    visit(OptionInfo{"num_blocks", "blocks", "in the pool; 0: by the rules below", 0, kMaxInt},
          o.num_blocks);
    visit(OptionInfo{"kv_cache_memory_bytes", "bytes", "of the pool; 0: by memory_utilization", 0,
                     1e15},
          o.kv_cache_memory_bytes);
    visit(OptionInfo{"memory_utilization", "share",
                     "of the memory that this process may use; weights and buffers included", 0.01,
                     1, "gpu_memory_utilization"},
          o.memory_utilization);
    visit(OptionInfo{"prefault_mib", "MiB",
                     "of the pool's memory that are made ready ahead of use, in the background; 0: "
                     "memory comes when it is first written, within a step",
                     0, 1 << 20},
          o.prefault_mib);
    visit(OptionInfo{"kv_cache_dtype", "type", "of keys and values in the pool", 0, 0,
                     "cache_dtype", "auto|float32|bfloat16|float16|int8"},
          o.kv_cache_dtype);
    visit(OptionInfo{"enable_prefix_caching", "true or false", "share equal beginnings of prompts"},
          o.enable_prefix_caching);
    visit(OptionInfo{"prefix_hash_algorithm", "name",
                     "of block hashes; sha256_cbor gives those that other engines compute", 0, 0,
                     "prefix_caching_hash_algo", "xxh3|sha256_cbor"},
          o.prefix_hash_algorithm);
    visit(OptionInfo{"max_num_blocks", "blocks",
                     "that num_blocks may be raised to while serving; 0: what the memory allows", 0,
                     kMaxInt},
          o.max_num_blocks);
    visit(OptionInfo{"max_pinned_share", "share", "of the pool, most that pinned prefixes may hold",
                     0, 1},
          o.max_pinned_share);
    visit(
        OptionInfo{
            "preemption_mode",
            "mode",
            "what happens to the blocks of a sequence that is put back: computed again, kept "
            "in the host tier, or whichever took less time lately",
            0,
            0,
            {},
            "recompute|swap|auto"},
        o.preemption_mode);
    visit(OptionInfo{"host_cache_memory_bytes", "bytes",
                     "of the host tier, for blocks that the pool evicts or swaps out; 0: none", 0,
                     1e15},
          o.host_cache_memory_bytes);
    visit(OptionInfo{"cache_directory", "path",
                     "where SaveCache, LoadCache and the file tier keep blocks; empty: nowhere"},
          o.cache_directory);
    visit(OptionInfo{"cache_directory_bytes", "bytes",
                     "of cache_directory, most that the file tier takes; 0: no file tier", 0, 1e15},
          o.cache_directory_bytes);
    visit(OptionInfo{"attention", "name",
                     "of the attention kernel, as `quire kernels` lists them; or by kind of layer: "
                     "full=<name>,sliding=<name>"},
          o.attention);
    visit(OptionInfo{"attention_library", "path",
                     "a shared object with an attention kernel of your own; empty: none"},
          o.attention_library);
    visit(
        OptionInfo{"compute", "type",
                   "of products with weights; auto: int8 for quantised weights with AVX2, bf16 for "
                   "bfloat16 ones with AMX, else float32",
                   0, 0, "", "auto|float32|bf16|int8"},
        o.compute);
    visit(OptionInfo{"quantization", "type",
                     "what weights stored in 16 or 32 bits become when they are loaded; quantised "
                     "ones stay as they are",
                     0, 0, "", "none|int8|int4"},
          o.quantization);
    visit(OptionInfo{"cpu_isa", "name", "instruction set of the kernels; auto: the best here"},
          o.cpu_isa);
    visit(OptionInfo{"num_threads", "threads", "of the kernels; 0: as many as physical cores", 0,
                     1024},
          o.num_threads);
    visit(OptionInfo{"profile_ops", "true or false",
                     "times each operation of a step; prints a table at the end"},
          o.profile_ops);
    visit(OptionInfo{"trace_file", "path",
                     "of the last steps' operations, written at the end, for chrome://tracing"},
          o.trace_file);
    visit(OptionInfo{"host", "address", "to listen on; 0.0.0.0 for all (see api_key_file)"},
          o.host);
    visit(OptionInfo{"port", "TCP port", "of gRPC; 0: any free one, printed at start", 0, 65535},
          o.port);
    visit(OptionInfo{"max_message_bytes", "bytes", "of one gRPC message, in or out", 1024, kMaxInt},
          o.max_message_bytes);
    visit(OptionInfo{"max_stream_buffer_bytes", "bytes",
                     "kept for a client that reads slowly, before its request is cancelled", 4096,
                     kMaxInt},
          o.max_stream_buffer_bytes);
    visit(OptionInfo{"http_host", "address", "to listen on for HTTP; empty: as host"}, o.http_host);
    visit(OptionInfo{"http_port", "TCP port", "of HTTP; 0: any free one, -1: no HTTP", -1, 65535},
          o.http_port);
    visit(OptionInfo{"http_allowed_origins", "origins",
                     "whose web pages may call, separated by commas; *: all; empty: none"},
          o.http_allowed_origins);
    visit(OptionInfo{"http_max_connections", "connections",
                     "of HTTP at the same time; one more is closed", 1, 1 << 20},
          o.http_max_connections);
    visit(OptionInfo{"http_keepalive_s", "seconds",
                     "that an HTTP connection without a request stays open", 0.1, 86400},
          o.http_keepalive_s);
    visit(
        OptionInfo{"http_request_timeout_s", "seconds",
                   "for the head of an HTTP request to arrive, and again for its body", 0.1, 86400},
        o.http_request_timeout_s);
    visit(OptionInfo{"sse_keepalive_s", "seconds",
                     "without an event after which a comment is sent on an HTTP stream; 0: none", 0,
                     86400},
          o.sse_keepalive_s);
    visit(OptionInfo{"http_dev_mode", "true or false",
                     "serve POST /reset_prefix_cache, too; with api_key_file, to admin keys"},
          o.http_dev_mode);
    visit(OptionInfo{"drain_timeout_s", "seconds",
                     "for running requests to end after SIGTERM, before they are cut", 0, 86400},
          o.drain_timeout_s);
    visit(OptionInfo{"kv_events", "true or false",
                     "tell routers and indexers what the cache holds; see docs/events.md"},
          o.kv_events);
    visit(OptionInfo{"kv_events_endpoint", "ZeroMQ endpoint",
                     "of KV events: bound if it has a * or :: in it, else connected to; empty: "
                     "by gRPC only"},
          o.kv_events_endpoint);
    visit(OptionInfo{"kv_events_replay_endpoint", "ZeroMQ endpoint",
                     "where missed KV events are asked for, bound; empty: none"},
          o.kv_events_replay_endpoint);
    visit(OptionInfo{"kv_events_topic", "text",
                     "first frame of KV events, such as kv@<pod>@<model> for llm-d"},
          o.kv_events_topic);
    visit(OptionInfo{"kv_events_buffer_steps", "batches", "of KV events kept for who missed them",
                     1, 1'000'000},
          o.kv_events_buffer_steps);
    visit(OptionInfo{"kv_events_hwm", "batches",
                     "of KV events that wait for one slow ZeroMQ subscriber", 1, 10'000'000},
          o.kv_events_hwm);
    visit(OptionInfo{"kv_events_max_queue_size", "batches",
                     "of KV events that wait to be sent over ZeroMQ", 1, 10'000'000},
          o.kv_events_max_queue_size);
    visit(OptionInfo{"kv_events_encoding",
                     "form",
                     "of an event: a map, as vLLM writes it, or an array, for older readers",
                     0,
                     0,
                     {},
                     "map|array"},
          o.kv_events_encoding);
    visit(OptionInfo{"kv_events_int_hashes", "true or false",
                     "block hashes in KV events are 64-bit numbers; false: all their bytes"},
          o.kv_events_int_hashes);
    visit(
        OptionInfo{"kv_events_max_subscribers", "calls",
                   "of SubscribeKvEvents that are open at a time, of all gRPC services", 1, 10'000},
        o.kv_events_max_subscribers);
    visit(OptionInfo{"api_key_file", "path",
                     "of the keys that may call, as `quire key` makes them; read again when it "
                     "changes; empty: everybody may"},
          o.api_key_file);
    visit(OptionInfo{"open_reflection", "true or false",
                     "with api_key_file: gRPC reflection also without a key"},
          o.open_reflection);
    visit(OptionInfo{"cache_salt_per_tenant", "true or false",
                     "tenants share no cached prefixes, so none can tell what another one asked"},
          o.cache_salt_per_tenant);
    visit(OptionInfo{"ssl_certfile", "path",
                     "PEM certificate and chain; with it all TCP ports speak TLS only; read again "
                     "when it changes"},
          o.ssl_certfile);
    visit(OptionInfo{"ssl_keyfile", "path", "PEM key of ssl_certfile, without a passphrase"},
          o.ssl_keyfile);
    visit(OptionInfo{"ssl_ca_certs", "path", "PEM certificates that sign those of clients"},
          o.ssl_ca_certs);
    visit(OptionInfo{"ssl_cert_reqs",
                     "level",
                     "whether clients must show a certificate that ssl_ca_certs signed",
                     0,
                     0,
                     {},
                     "none|optional|required|0|1|2"},
          o.ssl_cert_reqs);
    visit(OptionInfo{"admin_socket", "path",
                     "of the Unix socket of quire.v1.Admin, for this user only; auto: where "
                     "`quire admin` looks for it; none"},
          o.admin_socket);
    visit(OptionInfo{"admin_host", "address", "of admin_port"}, o.admin_host);
    visit(OptionInfo{"admin_port", "TCP port",
                     "of quire.v1.Admin, for keys with admin=true if there are keys; 0: any free "
                     "one, printed at start; -1: none",
                     -1, 65535},
          o.admin_port);
    visit(OptionInfo{"grpc_max_connections", "connections",
                     "at a time on the gRPC port; one more is closed at once; 0: no limit", 0,
                     kMaxInt},
          o.grpc_max_connections);
    visit(OptionInfo{"max_concurrent_streams", "calls",
                     "of one gRPC connection at a time; more wait at the client; 0: no limit", 0,
                     kMaxInt},
          o.max_concurrent_streams);
    visit(OptionInfo{"keepalive_time_s", "seconds",
                     "without a word from a gRPC client before it is pinged", 1, 86400},
          o.keepalive_time_s);
    visit(OptionInfo{"keepalive_timeout_s", "seconds",
                     "for its answer, before the connection is closed", 1, 86400},
          o.keepalive_timeout_s);
    visit(OptionInfo{"min_ping_interval_s", "seconds",
                     "between a gRPC client's own pings while it has no call; sooner is a strike",
                     0, 86400},
          o.min_ping_interval_s);
    visit(OptionInfo{"max_ping_strikes", "strikes",
                     "before the connection is closed; 0: clients may ping as they like", 0, 1000},
          o.max_ping_strikes);
    visit(OptionInfo{"max_connection_idle_s", "seconds",
                     "without a call, before a gRPC connection is closed; 0: never", 0, 1e6},
          o.max_connection_idle_s);
    visit(OptionInfo{"log_level",
                     "level",
                     "of the log on standard error",
                     0,
                     0,
                     {},
                     "trace|debug|info|warning|error"},
          o.log_level);
    visit(OptionInfo{"log_prompts", "true or false",
                     "prompts go to the log; without, no text of a request ever does"},
          o.log_prompts);
    visit(OptionInfo{"vllm_metric_names", "true or false",
                     "metrics that vLLM has, too, are called vllm:...; false: quire:..."},
          o.vllm_metric_names);
    visit(OptionInfo{"legacy_metric_names", "true or false",
                     "also those that vLLM has given up and old dashboards still ask for"},
          o.legacy_metric_names);
    visit(OptionInfo{"histogram_buckets", "list",
                     "upper bounds other than the usual ones: <metric without prefix>=0.001,0.01;"
                     "<metric>=..."},
          o.histogram_buckets);
  }
};

// One value from one source, as text.
struct Setting {
  std::string name;  // as in YAML
  std::string value;
  std::string where;     // "--port", "QUIRE_PORT" or "quire.yaml:3"
  bool is_text = false;  // quoted in YAML: not a number and not a bool
};

// "--max-num-seqs", "QUIRE_MAX_NUM_SEQS".
std::string FlagOf(std::string_view name);
std::string VariableOf(std::string_view name);

// The member's value as text: what help and log show.
std::string ValueOf(const ServerOptions& options, std::string_view name);

// All names and aliases.
std::vector<std::string> OptionNames();
bool IsBoolOption(std::string_view name);

// The candidate that differs from `name` in the fewest letters.
std::string Nearest(std::string_view name, const std::vector<std::string>& candidates);

// Sets the member of that name (or alias). ERRORS: kInvalidArgument with source, name, value and
// what would be right; unknown names with the nearest known one.
absl::Status ApplySetting(const Setting& setting, ServerOptions& options);

// What ties options together, and names of kernels (the instruction set is selected). Reads no
// model. ERRORS: kInvalidArgument naming the options that contradict each other and a way out.
absl::Status Validate(const ServerOptions& options);

}  // namespace quire
