#include "models/weights/open_weights.h"

#include <algorithm>
#include <filesystem>

#include "models/weights/gguf.h"
#include "models/weights/safetensors.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// For a directory without safetensors: what somebody may have meant.
std::string OtherWeights(const fs::path& dir) {
  std::error_code ignored;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".gguf" || extension == ".bin" || extension == ".pt" || extension == ".pth") {
      names.push_back(entry.path().filename().string());
    }
  }
  if (names.empty()) return "";
  std::sort(names.begin(), names.end());
  std::string text = "; it holds";
  for (size_t i = 0; i < std::min<size_t>(names.size(), 5); ++i) {
    text += fmt::format("{} {}", i > 0 ? "," : "", names[i]);
  }
  return text + ": give the path of a .gguf file itself, or convert to safetensors";
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeights(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return Error(absl::StatusCode::kNotFound, "model={}: no such file or directory", path);
  }
  if (fs::is_directory(status)) {
    const fs::path dir(path);
    if (!fs::exists(dir / kSafetensorsFile, error) && !fs::exists(dir / kSafetensorsIndex, error)) {
      return Error(absl::StatusCode::kNotFound, "model={}: the directory has no {} and no {}{}",
                   path, kSafetensorsFile, kSafetensorsIndex, OtherWeights(dir));
    }
    return SafetensorsSource::OpenDirectory(path);
  }
  const std::string extension = fs::path(path).extension().string();
  if (extension == ".gguf") return GgufFile::Open(path);
  if (extension == ".safetensors") return SafetensorsSource::OpenFile(path);
  return InvalidArgument(
      "model={} must be a .gguf file, a .safetensors file or a directory with safetensors", path);
}

}  // namespace quire
