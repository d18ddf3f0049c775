// server/cli/admin.cc -- `quire admin`: looks into a running daemon's cache, and acts on it.
#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clients/cpp/generation_client.h"
#include "quire/v1/quire.grpc.pb.h"
#include "server/cli/admin_text.h"
#include "server/cli/client.h"
#include "server/cli/commands.h"
#include "server/options.h"

namespace quire {
namespace {

namespace pb = ::quire::v1;

constexpr const char* kHelp =
    "What is wrong?       quire admin stats      who holds the blocks, what was evicted and why\n"
    "Who holds them?      quire admin requests   then: quire admin blocks --request ID\n"
    "Why no prefix hits?  quire admin tree       which prefixes are cached, under which salt\n"
    "Out of memory?       quire admin memory     what it is for; quire admin resize N changes it\n"
    "Too slow, unfair?    quire admin config     limits and policy; config set NAME=VALUE changes\n"
    "Hands off for now?   quire admin pause      nothing is computed until: quire admin resume";

struct AdminOptions {
  ServerAddress address;
  bool json = false;
  std::optional<double> timeout_s;
  std::vector<std::string> states;
  std::string request_id;
  std::optional<uint32_t> pool, first_block, limit;
  bool tables = false;
  bool tokens = false;
  bool all = false;
  std::optional<std::string> salt;
  std::string text;
  std::vector<uint32_t> ids;
  double ttl_s = 0;
  int64_t pin_id = 0;
  uint32_t num_blocks = 0;
  std::string directory;
  std::vector<std::string> change;  // "set", then name=value ...
};

class Client {
 public:
  explicit Client(const AdminOptions& o)
      : o_(o), stub_(pb::Admin::NewStub(o.address.ConnectAdmin())) {}

  // Copies of files may take long; all else that takes long is a daemon that hangs.
  void PrepareFor(grpc::ClientContext& context, double timeout_s) const {
    const double seconds = o_.timeout_s.value_or(timeout_s);
    if (seconds <= 0) return;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)));
  }

  template <typename Request, typename Reply, typename Print>
  int Unary(grpc::Status (pb::Admin::Stub::*call)(grpc::ClientContext*, const Request&, Reply*),
            const Request& request, Print print, double timeout_s = 30) const {
    grpc::ClientContext context;
    PrepareFor(context, timeout_s);
    Reply reply;
    const grpc::Status status = (*stub_.*call)(&context, request, &reply);
    if (!status.ok())
      return Fail(kExitFailed, Explain(ToStatus(status), o_.address.AdminTarget()).c_str());
    if (o_.json) return PrintJson(reply);
    fmt::print("{}", print(reply));
    return 0;
  }

  // Joins the batches into one message: what is printed is of one moment.
  template <typename Request, typename Batch, typename Print>
  int Stream(std::unique_ptr<grpc::ClientReader<Batch>> (pb::Admin::Stub::*call)(
                 grpc::ClientContext*, const Request&),
             const Request& request, Print print) const {
    grpc::ClientContext context;
    PrepareFor(context, 30);
    const std::unique_ptr<grpc::ClientReader<Batch>> reader = (*stub_.*call)(&context, request);
    Batch all;
    Batch batch;
    while (reader->Read(&batch)) all.MergeFrom(batch);
    const grpc::Status status = reader->Finish();
    if (!status.ok())
      return Fail(kExitFailed, Explain(ToStatus(status), o_.address.AdminTarget()).c_str());
    if (o_.json) return PrintJson(all);
    fmt::print("{}", print(all));
    if (all.truncated()) {
      fmt::print(stderr, "There is more; --limit shows up to 100000 (requests: 10000).\n");
    }
    return 0;
  }

 private:
  static int PrintJson(const google::protobuf::Message& message) {
    google::protobuf::util::JsonPrintOptions options;
    options.always_print_primitive_fields = true;
    options.preserve_proto_field_names = true;
    options.add_whitespace = true;
    std::string text;
    if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
      return Fail(kExitFailed, "the answer can't be printed as JSON");
    }
    fmt::print("{}\n", text);
    return 0;
  }

  const AdminOptions& o_;
  const std::unique_ptr<pb::Admin::Stub> stub_;
};

int RunBlocks(const AdminOptions& o) {
  pb::InspectBlocksRequest request;
  for (const std::string& state : o.states) {
    request.add_states(state == "used"     ? pb::BLOCK_STATE_USED
                       : state == "cached" ? pb::BLOCK_STATE_CACHED
                                           : pb::BLOCK_STATE_EMPTY);
  }
  if (o.states.empty()) {  // empty ones tell nothing
    request.add_states(pb::BLOCK_STATE_USED);
    request.add_states(pb::BLOCK_STATE_CACHED);
  }
  request.set_request_id(o.request_id);
  if (o.pool) request.set_pool(*o.pool);
  if (o.first_block) request.set_first_block(*o.first_block);
  if (o.limit) request.set_limit(*o.limit);
  return Client(o).Stream(&pb::Admin::Stub::InspectBlocks, request, BlocksText);
}

int RunRequests(const AdminOptions& o) {
  pb::InspectRequestsRequest request;
  request.set_request_id(o.request_id);
  if (o.limit) request.set_limit(*o.limit);
  return Client(o).Stream(&pb::Admin::Stub::InspectRequests, request,
                          [&](const pb::RequestBatch& all) { return RequestsText(all, o.tables); });
}

int RunTree(const AdminOptions& o) {
  pb::DumpPrefixTreeRequest request;
  request.set_include_tokens(o.tokens);
  if (o.limit) request.set_limit(*o.limit);
  return Client(o).Stream(&pb::Admin::Stub::DumpPrefixTree, request, TreeText);
}

int RunPin(AdminOptions& o) {
  pb::PinPrefixRequest request;
  if (!o.ids.empty()) {
    request.mutable_token_ids()->mutable_ids()->Add(o.ids.begin(), o.ids.end());
  } else {
    if (o.text == "-") {
      o.text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
    }
    request.set_text(o.text);
  }
  request.set_cache_salt(o.salt.value_or(""));
  if (o.ttl_s > 0) request.set_ttl_ms(static_cast<int64_t>(o.ttl_s * 1e3));
  return Client(o).Unary(&pb::Admin::Stub::PinPrefix, request, [](const pb::Pin& pin) {
    return fmt::format("pin {} keeps {} tokens\n", pin.pin_id(), pin.num_tokens());
  });
}

int RunUnpin(const AdminOptions& o) {
  pb::UnpinPrefixRequest request;
  if (o.all) {
    request.set_all(true);
  } else {
    request.set_pin_id(o.pin_id);
  }
  return Client(o).Unary(&pb::Admin::Stub::UnpinPrefix, request,
                         [](const pb::UnpinPrefixResponse& reply) {
                           return fmt::format("{} pins ended\n", reply.ended_pins());
                         });
}

int RunFlush(const AdminOptions& o) {
  pb::FlushPrefixCacheRequest request;
  if (o.salt) {
    request.set_cache_salt(*o.salt);
  } else if (o.all) {
    request.set_all(true);
  } else {
    return Fail(kExitUsage, "say what: --all, or --salt SALT (\"\" for requests without one)");
  }
  return Client(o).Unary(
      &pb::Admin::Stub::FlushPrefixCache, request, [](const pb::FlushPrefixCacheResponse& reply) {
        return fmt::format("{} blocks of tokens forgotten, {} blocks emptied, {} pins ended\n",
                           reply.flushed_nodes(), reply.emptied_blocks(), reply.ended_pins());
      });
}

int RunResize(const AdminOptions& o) {
  pb::UpdateConfigRequest request;
  request.set_num_blocks(o.num_blocks);
  return Client(o).Unary(&pb::Admin::Stub::UpdateConfig, request, ConfigText);
}

template <typename T>
bool ParseNumber(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

// "name=value" into the field of that name; the daemon checks ranges. What is wrong, or "".
std::string ReadChange(const std::string& change, pb::UpdateConfigRequest& request) {
  using google::protobuf::FieldDescriptor;
  const size_t equals = change.find('=');
  const std::string name = change.substr(0, equals);
  const google::protobuf::Descriptor& all = *request.GetDescriptor();
  const FieldDescriptor* const field = all.FindFieldByName(name);
  if (field == nullptr) {
    std::vector<std::string> known;
    for (int i = 0; i < all.field_count(); ++i) known.push_back(all.field(i)->name());
    return fmt::format("{} can't be changed while serving; did you mean {}?", name,
                       Nearest(name, known));
  }
  if (equals == std::string::npos)
    return fmt::format("{} has no value; write {}=VALUE", name, name);
  const std::string value = change.substr(equals + 1);
  const google::protobuf::Reflection& fields = *request.GetReflection();
  if (fields.HasField(request, field)) return fmt::format("{} is set twice", name);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      fields.SetString(&request, field, value);
      return "";
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double number = 0;
      if (!ParseNumber(value, number)) return fmt::format("{}={} is not a number", name, value);
      fields.SetDouble(&request, field, number);
      return "";
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t number = 0;
      if (!ParseNumber(value, number)) {
        return fmt::format("{}={} is not a whole number", name, value);
      }
      fields.SetUInt32(&request, field, number);
      return "";
    }
    default: {
      int32_t number = 0;
      if (!ParseNumber(value, number)) {
        return fmt::format("{}={} is not a whole number", name, value);
      }
      fields.SetInt32(&request, field, number);
      return "";
    }
  }
}

int RunConfig(const AdminOptions& o) {
  const Client client(o);
  if (o.change.empty()) {
    return client.Unary(&pb::Admin::Stub::GetConfig, pb::GetConfigRequest(), ConfigText);
  }
  if (o.change[0] != "set" || o.change.size() < 2) {
    return Fail(kExitUsage, "write: quire admin config set NAME=VALUE ...; without `set` it shows");
  }
  pb::UpdateConfigRequest request;
  for (size_t i = 1; i < o.change.size(); ++i) {
    const std::string wrong = ReadChange(o.change[i], request);
    if (!wrong.empty()) return Fail(kExitUsage, wrong.c_str());
  }
  return client.Unary(&pb::Admin::Stub::UpdateConfig, request, ConfigText);
}

int RunPause(const AdminOptions& o) {
  return Client(o).Unary(
      &pb::Admin::Stub::Pause, pb::PauseRequest(), [](const pb::PauseResponse& reply) {
        return std::string(reply.was_paused() ? "was paused already\n" : "paused; requests wait\n");
      });
}

int RunResume(const AdminOptions& o) {
  return Client(o).Unary(
      &pb::Admin::Stub::Resume, pb::ResumeRequest(), [](const pb::ResumeResponse& reply) {
        return std::string(reply.was_paused() ? "goes on\n" : "was not paused\n");
      });
}

int RunSave(const AdminOptions& o) {
  pb::SaveCacheRequest request;
  request.set_directory(o.directory);
  return Client(o).Unary(
      &pb::Admin::Stub::SaveCache, request,
      [](const pb::CacheTransfer& t) { return "saved " + TransferText(t); }, 0);
}

int RunLoad(const AdminOptions& o) {
  pb::LoadCacheRequest request;
  request.set_directory(o.directory);
  return Client(o).Unary(
      &pb::Admin::Stub::LoadCache, request,
      [](const pb::CacheTransfer& t) { return "loaded " + TransferText(t); }, 0);
}

}  // namespace

Subcommand MakeAdmin(CLI::App& parent) {
  auto o = std::make_shared<AdminOptions>();
  CLI::App* const app =
      parent.add_subcommand("admin", "look into a running daemon's cache, and act on it");
  app->footer(kHelp);
  app->require_subcommand(1);
  auto commands = std::make_shared<std::vector<Subcommand>>();
  const auto add = [&](const char* name, const char* help, std::function<int()> run) {
    CLI::App* const command = app->add_subcommand(name, help);
    o->address.AddAdminOptions(*command);
    command->add_flag("--json", o->json, "print JSON");
    command->add_option("--timeout", o->timeout_s,
                        "seconds to wait; 0 = for ever [30; save and load: for ever]");
    commands->push_back({command, std::move(run)});
    return command;
  };
  const auto add_limit = [&](CLI::App* command) {
    command->add_option("--limit", o->limit, "lines at most [1000]");
  };

  add("stats", "blocks by state, sharing, hits, evictions by reason, times", [o] {
    return Client(*o).Unary(&pb::Admin::Stub::GetBlockStats, pb::GetBlockStatsRequest(), StatsText);
  });
  CLI::App* command =
      add("requests", "what runs and waits, and what it holds", [o] { return RunRequests(*o); });
  command->add_option("--request", o->request_id, "only this one");
  command->add_flag("--tables", o->tables, "print the page tables");
  add_limit(command);
  command = add("blocks", "blocks one by one: who holds them, of which prefix, since when unused",
                [o] { return RunBlocks(*o); });
  command->add_option("--state", o->states, "used, cached or empty; several add up [used, cached]")
      ->check(CLI::IsMember({"used", "cached", "empty"}));
  command->add_option("--request", o->request_id, "only what this request holds");
  command->add_option("--pool", o->pool, "only this one");
  command->add_option("--first", o->first_block, "block ids from there on");
  add_limit(command);
  command = add("tree", "cached prefixes as a tree; prompts are not shown unless asked for",
                [o] { return RunTree(*o); });
  command->add_flag("--tokens", o->tokens, "print token ids: prompts can be read from them");
  add_limit(command);
  add("memory", "what the memory is for, and why the pools have their sizes", [o] {
    return Client(*o).Unary(&pb::Admin::Stub::GetMemoryProfile, pb::GetMemoryProfileRequest(),
                            MemoryText);
  });
  add("pins", "pinned prefixes", [o] {
    return Client(*o).Unary(&pb::Admin::Stub::ListPins, pb::ListPinsRequest(), PinsText);
  });
  command =
      add("pin", "keep what is cached of a prefix, whatever comes", [o] { return RunPin(*o); });
  command->add_option("text", o->text, "the prefix; - reads standard input");
  command->add_option("--ids", o->ids, "token ids instead, separated by commas")->delimiter(',');
  command->add_option("--salt", o->salt, "cache_salt of its requests");
  command->add_option("--ttl", o->ttl_s, "seconds; default until unpinned");
  command = add("unpin", "let a pinned prefix go", [o] { return RunUnpin(*o); });
  command->add_option("pin", o->pin_id, "its number, as `pins` prints it");
  command->add_flag("--all", o->all, "all of them");
  command = add("flush", "forget cached prefixes; running requests are not disturbed",
                [o] { return RunFlush(*o); });
  command->add_flag("--all", o->all, "of all salts");
  command->add_option("--salt", o->salt, "of this cache_salt only");
  command =
      add("resize", "change the number of blocks while serving", [o] { return RunResize(*o); });
  command->add_option("num_blocks", o->num_blocks, "of the main pool")->required();
  command = add("config", "limits and policy; `set NAME=VALUE ...` changes them while serving",
                [o] { return RunConfig(*o); });
  command->add_option("change", o->change, "set, then NAME=VALUE: all of them or none");
  add("pause", "compute nothing for now; requests are taken in, deadlines hold",
      [o] { return RunPause(*o); });
  add("resume", "go on after a pause", [o] { return RunResume(*o); });
  command = add("save", "write cached prefixes to files", [o] { return RunSave(*o); });
  command->add_option("directory", o->directory, "below the daemon's cache_directory")->required();
  command = add("load", "read cached prefixes from files", [o] { return RunLoad(*o); });
  command->add_option("directory", o->directory, "below the daemon's cache_directory")->required();
  return {app, [commands] {
            for (const Subcommand& c : *commands) {
              if (c.app->parsed()) return c.run();
            }
            return kExitUsage;
          }};
}

}  // namespace quire
