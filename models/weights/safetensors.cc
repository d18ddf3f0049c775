#include "models/weights/safetensors.h"

#include <algorithm>
#include <filesystem>

#include "models/weights/byte_reader.h"
#include "models/weights/weight_path.h"

namespace quire {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr int32_t kMaxHeaderDepth = 8;
constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxListed = 20;

struct FileDType {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;
};

constexpr FileDType kDTypes[] = {
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"F64", 64, {}},
    {"I64", 64, {}},
    {"U64", 64, {}},
    {"I32", 32, {}},
    {"U32", 32, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"I8", 8, {}},
    {"U8", 8, {}},
    {"BOOL", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"C64", 64, {}},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
};

const FileDType* FindDType(std::string_view name) {
  for (const FileDType& t : kDTypes) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

// A non-negative integer literal; nullopt for floats, negatives and values beyond int64.
std::optional<uint64_t> AsUnsigned(const Json& value) {
  if (!value.is_integer()) return std::nullopt;
  const std::optional<int64_t> v = value.as_int();
  if (!v || *v < 0) return std::nullopt;
  return static_cast<uint64_t>(*v);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsSource>> SafetensorsSource::OpenFile(
    const std::string& path) {
  std::unique_ptr<SafetensorsSource> source(new SafetensorsSource);
  RETURN_IF_ERROR(source->AddFile(path, nullptr));
  source->Finish();
  return source;
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>> SafetensorsSource::OpenDirectory(
    const std::string& dir) {
  std::error_code ignored;
  const std::filesystem::path root(dir);
  std::unique_ptr<SafetensorsSource> source(new SafetensorsSource);
  if (!std::filesystem::exists(root / kSafetensorsIndex, ignored)) {
    ASSIGN_OR_RETURN(const std::string file, ResolveWeightFile(dir, kSafetensorsFile));
    RETURN_IF_ERROR(source->AddFile(file, nullptr));
    source->Finish();
    return source;
  }
  const std::string index_path = (root / kSafetensorsIndex).string();
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path, kMaxIndexBytes));
  const absl::StatusOr<Json> index =
      Json::Parse(text, {.max_bytes = kMaxIndexBytes, .max_depth = kMaxHeaderDepth});
  if (!index.ok()) return Annotate(index.status(), index_path);
  const Json weight_map = (*index)["weight_map"];
  if (!weight_map.is_object() || weight_map.size() == 0) {
    return InvalidArgument("{}: weight_map must be an object that maps tensors to files",
                           index_path);
  }
  RETURN_IF_ERROR(source->AddIndexedFiles(dir, weight_map));
  for (const auto& entry : std::filesystem::directory_iterator(root, ignored)) {
    const std::string name = entry.path().filename().string();
    const auto& used = source->file_names_;
    if (entry.path().extension() == ".safetensors" &&
        std::find(used.begin(), used.end(), name) == used.end()) {
      source->ignored_files_.push_back(name);
    }
  }
  std::sort(source->ignored_files_.begin(), source->ignored_files_.end());
  source->Finish();
  return source;
}

absl::Status SafetensorsSource::AddIndexedFiles(const std::string& dir, const Json& weight_map) {
  const std::string index_path = (std::filesystem::path(dir) / kSafetensorsIndex).string();
  std::map<std::string, std::vector<std::string>>
      tensors_of;  // by file; sorted: the same order always
  for (const std::string& tensor : weight_map.keys()) {
    const std::optional<std::string_view> file = weight_map[tensor].as_string();
    if (!file) {
      return InvalidArgument("{}: weight_map[\"{}\"] must be a file name", index_path,
                             Printable(tensor));
    }
    tensors_of[std::string(*file)].push_back(tensor);
  }
  // All names are judged before the first file is opened.
  std::vector<std::pair<std::string, const std::vector<std::string>*>> files;
  std::string missing;
  for (const auto& [name, tensors] : tensors_of) {
    absl::StatusOr<std::string> path = ResolveWeightFile(dir, name);
    if (path.status().code() == absl::StatusCode::kNotFound) {
      missing +=
          fmt::format("{}{} ({} tensors)", missing.empty() ? "" : ", ", name, tensors.size());
      continue;
    }
    if (!path.ok()) {
      return Annotate(path.status(),
                      fmt::format("{}: weight_map[\"{}\"]", index_path, Printable(tensors[0])));
    }
    files.emplace_back(*std::move(path), &tensors);
  }
  if (!missing.empty()) {
    return Error(absl::StatusCode::kNotFound,
                 "{}: files of weight_map are missing: {}; download them again", index_path,
                 missing);
  }
  for (const auto& [path, tensors] : files) RETURN_IF_ERROR(AddFile(path, tensors));
  // Names are taken from the index, so links into a hub's blobs keep their readable name.
  size_t i = 0;
  for (const auto& entry : tensors_of) file_names_[i++] = entry.first;

  std::string absent;
  size_t num_absent = 0;
  for (const auto& [file, tensors] : tensors_of) {
    for (const std::string& tensor : tensors) {
      if (tensors_.contains(tensor)) continue;
      if (++num_absent <= kMaxListed) {
        absent += fmt::format("{}{} ({})", absent.empty() ? "" : ", ", Printable(tensor), file);
      }
    }
  }
  if (num_absent > 0) {
    return Error(absl::StatusCode::kNotFound,
                 "{}: {} tensors of weight_map are not in their files: {}{}", index_path,
                 num_absent, absent, num_absent > kMaxListed ? ", ..." : "");
  }
  return absl::OkStatus();
}

absl::Status SafetensorsSource::AddFile(const std::string& path,
                                        const std::vector<std::string>* wanted) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  files_.push_back(std::move(mapped));
  file_names_.push_back(std::filesystem::path(path).filename().string());
  const size_t file = files_.size() - 1;
  const auto bytes = files_[file].bytes();
  ByteReader in(bytes);
  const absl::StatusOr<uint64_t> length = in.Read<uint64_t>("header length");
  if (!length.ok()) return Annotate(length.status(), path);
  if (*length > kMaxHeaderBytes) {
    return InvalidArgument("{}: header length={} at byte 0 exceeds the limit of {} bytes", path,
                           *length, kMaxHeaderBytes);
  }
  if (*length > in.remaining()) {
    return InvalidArgument(
        "{}: truncated: header at byte 8 needs {} bytes, but the file has only {}", path, *length,
        bytes.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, *length);
  if (text.empty() || text[0] != '{') {
    return InvalidArgument("{}: header at byte 8 must start with '{{'", path);
  }
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return InvalidArgument("{}: header has a NUL at byte {}", path, 8 + nul);
  }
  const absl::StatusOr<Json> header =
      Json::Parse(text, {.max_bytes = kMaxHeaderBytes, .max_depth = kMaxHeaderDepth});
  if (!header.ok()) return Annotate(header.status(), path + ": header");

  std::unordered_map<std::string, Tensor> tensors;
  RETURN_IF_ERROR(Annotate(ParseHeader(*header, file, 8 + *length, tensors), path));
  if (wanted == nullptr) {
    tensors_.merge(tensors);
    return absl::OkStatus();
  }
  for (const std::string& name : *wanted) {
    const auto it = tensors.find(name);
    if (it == tensors.end()) continue;
    tensors_.insert_or_assign(name, std::move(it->second));
    tensors.erase(it);
  }
  for (auto& [name, tensor] : tensors) {
    tensor.unusable = fmt::format("in the file, but {} does not place it there", kSafetensorsIndex);
    tensors_.emplace(name, std::move(tensor));  // never over one that the index names
  }
  return absl::OkStatus();
}

absl::Status SafetensorsSource::ParseHeader(
    const Json& header, size_t file, size_t data_start,
    std::unordered_map<std::string, Tensor>& tensors) const {
  const auto bytes = files_[file].bytes();
  const uint64_t data_bytes = bytes.size() - data_start;
  struct Range {
    uint64_t begin;
    uint64_t end;
    std::string name;
  };
  std::vector<Range> ranges;
  for (const std::string& name : header.keys()) {
    const Json entry = header[name];
    if (name == "__metadata__") {
      if (!entry.is_object()) return InvalidArgument("__metadata__ must be an object of strings");
      for (const std::string& key : entry.keys()) {
        if (!entry[key].is_string()) {
          return InvalidArgument("__metadata__[\"{}\"] must be a string", Printable(key));
        }
      }
      continue;
    }
    const std::string where = "tensor " + Printable(name);
    if (!entry.is_object()) return InvalidArgument("{} must be an object", where);
    const std::optional<std::string_view> dtype_name = entry["dtype"].as_string();
    if (!dtype_name) return InvalidArgument("{}: dtype must be a string", where);
    const Json shape = entry["shape"];
    if (!shape.is_array()) return InvalidArgument("{}: shape must be an array", where);
    const Json offsets = entry["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2) {
      return InvalidArgument("{}: data_offsets must be an array of 2 integers", where);
    }
    const std::optional<uint64_t> begin = AsUnsigned(offsets.at(0));
    const std::optional<uint64_t> end = AsUnsigned(offsets.at(1));
    if (!begin || !end) {
      return InvalidArgument("{}: data_offsets={} must be integers in [0, 2^63)", where,
                             Printable(offsets.Dump()));
    }
    if (*begin > *end) {
      return InvalidArgument("{}: data_offsets=[{}, {}] begin after they end", where, *begin, *end);
    }
    Tensor tensor{.file = file};
    uint64_t num_elements = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
      const std::optional<uint64_t> dim = AsUnsigned(shape.at(i));
      if (!dim) {
        return InvalidArgument("{}: shape={} must be integers in [0, 2^63)", where,
                               Printable(shape.Dump()));
      }
      if (__builtin_mul_overflow(num_elements, *dim, &num_elements) ||
          num_elements > static_cast<uint64_t>(INT64_MAX)) {
        return InvalidArgument("{}: the product of shape={} overflows", where,
                               Printable(shape.Dump()));
      }
      if (i < tensor.view.shape.size()) tensor.view.shape[i] = static_cast<int64_t>(*dim);
    }
    tensor.view.rank = static_cast<int32_t>(std::min(shape.size(), tensor.view.shape.size()));
    const FileDType* dtype = FindDType(*dtype_name);
    if (dtype != nullptr) {
      uint64_t bits;
      if (__builtin_mul_overflow(num_elements, dtype->bits, &bits) || bits % 8 != 0 ||
          bits / 8 != *end - *begin) {
        return InvalidArgument("{}: shape={} of {} does not fill data_offsets=[{}, {}]", where,
                               Printable(shape.Dump()), dtype->name, *begin, *end);
      }
    }
    if (dtype == nullptr || !dtype->dtype) {
      tensor.unusable =
          fmt::format("dtype={} is not supported; known: F32, F16, BF16", Printable(*dtype_name));
    } else if (shape.size() > tensor.view.shape.size()) {
      tensor.unusable = fmt::format("shape={} has more than {} dimensions", Printable(shape.Dump()),
                                    tensor.view.shape.size());
    } else {
      tensor.view.dtype = *dtype->dtype;
    }
    if (*end > data_bytes) {
      return InvalidArgument(
          "truncated: {} with data_offsets=[{}, {}] ends at byte {}, but the file has only {}",
          where, *begin, *end, data_start + *end, bytes.size());
    }
    tensor.view.data = bytes.data() + data_start + *begin;
    ranges.push_back({*begin, *end, name});
    tensors.emplace(name, std::move(tensor));
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Range& r : ranges) {
    if (r.begin != covered) {
      return InvalidArgument(
          "tensor {}: data_offsets=[{}, {}] must begin at {}, where the tensor before it ends: {}",
          Printable(r.name), r.begin, r.end, covered, r.begin < covered ? "overlap" : "gap");
    }
    covered = r.end;
  }
  if (covered != data_bytes) {
    return InvalidArgument("the header describes {} bytes of data, but {} follow it", covered,
                           data_bytes);
  }
  return absl::OkStatus();
}

void SafetensorsSource::Finish() {
  for (const auto& [name, tensor] : tensors_) {
    if (!tensor.unusable.empty()) continue;
    names_.push_back(name);
    bytes_ += tensor.view.num_bytes();
  }
  std::sort(names_.begin(), names_.end());
}

std::optional<TensorView> SafetensorsSource::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || !it->second.unusable.empty()) return std::nullopt;
  return it->second.view;
}

std::string SafetensorsSource::FileOf(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? file_names_[0] : file_names_[it->second.file];
}

std::string SafetensorsSource::WhyUnusable(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? std::string() : it->second.unusable;
}

void SafetensorsSource::DropPages() const {
  for (const MappedFile& file : files_) file.DropPages();
}

}  // namespace quire
