#include "models/plan/shape_source.h"

#include <filesystem>

#include "base/mapped_file.h"
#include "models/plan/shape_readers.h"
#include "models/plan/shapes_gguf.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 16 << 20;

absl::StatusOr<ModelShape> FromJson(std::string_view text, const std::string& file) {
  absl::StatusOr<Json> json = Json::Parse(text, {.max_bytes = kMaxConfigBytes, .max_depth = 64});
  if (!json.ok()) return Annotate(json.status(), file);
  if (!json->is_object()) return InvalidArgument("{}: must be a JSON object", file);
  return ReadShape(JsonFields(*std::move(json), file));
}

}  // namespace

absl::StatusOr<ModelShape> LoadShape(const std::string& model) {
  std::error_code error;
  fs::path path(model);
  std::string name = path.stem().string();
  if (fs::is_directory(path, error)) {
    const fs::path plain = path.lexically_normal();
    name = (plain.has_filename() ? plain : plain.parent_path()).filename().string();
    path /= "config.json";
  }
  if (!fs::exists(path, error)) {
    std::string known;
    for (const BuiltInConfig& config : BuiltInConfigs()) {
      if (config.name == model) {
        ASSIGN_OR_RETURN(ModelShape shape, FromJson(config.json, model));
        shape.name = model;
        return shape;
      }
      known += fmt::format("{}{}", known.empty() ? "" : ", ", config.name);
    }
    return Error(absl::StatusCode::kNotFound,
                 "model={} is neither a config.json, a folder with one, a .gguf file nor built in; "
                 "built in: {}",
                 Printable(model), known);
  }
  if (path.extension() == ".gguf") {
    ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path.string()));
    ASSIGN_OR_RETURN(ModelShape shape, ReadGgufShape(*file));
    shape.name = name;
    return shape;
  }
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path.string(), kMaxConfigBytes));
  ASSIGN_OR_RETURN(ModelShape shape, FromJson(text, path.string()));
  // "config" says nothing; its folder's name does.
  if (name == "config" && path.has_parent_path()) name = path.parent_path().filename().string();
  shape.name = name;
  return shape;
}

}  // namespace quire
