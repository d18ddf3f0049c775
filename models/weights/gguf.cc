#include "models/weights/gguf.h"

#include <algorithm>
#include <filesystem>

namespace quire {
namespace {

// Smallest encodings: a key of one byte with a one-byte value; a tensor of one dimension with a
// name of one byte. Counts in the header are checked against them before anything else.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;
// Limits of the specification: keys are at most 2^16 - 1 bytes, tensor names 64, dimensions 4.
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 64;
constexpr uint32_t kMaxDims = 4;
// Nobody pads by more; the specification asks for a multiple of 8.
constexpr uint32_t kMinAlignment = 8;
constexpr uint32_t kMaxAlignment = 1u << 20;
constexpr uint32_t kDefaultAlignment = 32;

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t ByteSwap(uint32_t x) { return __builtin_bswap32(x); }

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  std::unique_ptr<GgufFile> file(new GgufFile);
  ASSIGN_OR_RETURN(file->file_, MappedFile::Open(path));
  file->file_name_ = std::filesystem::path(path).filename().string();
  absl::Status status = file->Parse();
  if (!status.ok()) return Annotate(status, path);
  return file;
}

absl::Status GgufFile::Parse() {
  ByteReader in(file_.bytes());
  if (in.remaining() < kMagic.size()) {
    return InvalidArgument("truncated: magic at byte 0 needs 4 bytes, but the file has only {}",
                           in.remaining());
  }
  const std::string_view magic(reinterpret_cast<const char*>(file_.bytes().data()), 4);
  if (magic != kMagic) {
    return InvalidArgument("magic=\"{}\" at byte 0 must be \"GGUF\": not a GGUF file",
                           Printable(magic));
  }
  RETURN_IF_ERROR(in.Skip("magic", 4));
  ASSIGN_OR_RETURN(version_, in.Read<uint32_t>("version"));
  if (version_ != 2 && version_ != 3) {
    const uint32_t swapped = ByteSwap(version_);
    if (swapped == 2 || swapped == 3) {
      return Error(absl::StatusCode::kUnimplemented,
                   "version={:#x} at byte 4 is big endian; convert the file to little endian",
                   version_);
    }
    return Error(absl::StatusCode::kUnimplemented, "version={} at byte 4 must be 2 or 3", version_);
  }
  ASSIGN_OR_RETURN(const auto num_tensors, in.Read<uint64_t>("tensor_count"));
  ASSIGN_OR_RETURN(const auto num_entries, in.Read<uint64_t>("metadata_kv_count"));
  if (num_entries > in.remaining() / kMinEntryBytes) {
    return InvalidArgument(
        "metadata_kv_count={} at byte 16 exceeds what {} remaining bytes can hold: the file is "
        "truncated or corrupt",
        num_entries, in.remaining());
  }
  if (num_tensors > in.remaining() / kMinTensorInfoBytes) {
    return InvalidArgument(
        "tensor_count={} at byte 8 exceeds what {} remaining bytes can hold: the file is truncated "
        "or corrupt",
        num_tensors, in.remaining());
  }

  // Nothing is reserved by these counts: the containers grow with what was really read.
  for (uint64_t i = 0; i < num_entries; ++i) {
    const size_t at = in.pos();
    absl::StatusOr<std::string_view> key = in.ReadString("key", kMaxKeyBytes);
    if (!key.ok()) return Annotate(key.status(), fmt::format("metadata entry {}", i));
    if (key->empty()) return InvalidArgument("metadata entry {} at byte {}: empty key", i, at);
    const std::string name(*key);
    if (values_.contains(name)) {
      return InvalidArgument("key {} at byte {} occurs twice", Printable(name), at);
    }
    RETURN_IF_ERROR(Annotate(ParseValue(in, name), "key " + Printable(name)));
    keys_.push_back(name);
  }
  if (Has("split.count")) {
    ASSIGN_OR_RETURN(const int64_t count, GetInt("split.count"));
    if (count > 1) {
      return Error(absl::StatusCode::kUnimplemented,
                   "split.count={}: split files are not read; merge them into one", count);
    }
  }

  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < num_tensors; ++i) RETURN_IF_ERROR(ParseTensorInfo(in, i, tensors));
  ASSIGN_OR_RETURN(const uint32_t alignment, Alignment());
  // No overflow: pos is at most the file's size, alignment at most 2^20.
  const size_t data_start = (in.pos() + alignment - 1) / alignment * alignment;
  for (const Tensor& t : tensors) {
    if (t.offset % alignment != 0) {
      return InvalidArgument(
          "tensor {} (described at byte {}): offset={} must be a multiple of general.alignment={}",
          Printable(t.name), t.info_at, t.offset, alignment);
    }
  }
  return PlaceTensors(std::move(tensors), data_start);
}

absl::Status GgufFile::ParseValue(ByteReader& in, const std::string& key) {
  size_t at = in.pos();
  ASSIGN_OR_RETURN(const auto type_number, in.Read<uint32_t>("value type"));
  const std::optional<GgufType> type = GgufTypeFromNumber(type_number);
  if (!type) return InvalidArgument("value type={} at byte {} must be in [0, 12]", type_number, at);
  Value value{.type = *type, .element_type = *type, .count = 1, .offset = in.pos()};
  if (*type == GgufType::kArray) {
    at = in.pos();
    ASSIGN_OR_RETURN(const auto element_number, in.Read<uint32_t>("array type"));
    const std::optional<GgufType> element = GgufTypeFromNumber(element_number);
    if (!element) {
      return InvalidArgument("array type={} at byte {} must be in [0, 12]", element_number, at);
    }
    if (*element == GgufType::kArray) {
      return Error(absl::StatusCode::kUnimplemented,
                   "array type=9 at byte {}: arrays of arrays are not read", at);
    }
    at = in.pos();
    ASSIGN_OR_RETURN(value.count, in.Read<uint64_t>("array length"));
    value.element_type = *element;
    value.offset = in.pos();
    const size_t min_bytes = *element == GgufType::kString ? 8 : FixedSize(*element);
    if (value.count > in.remaining() / min_bytes) {
      return InvalidArgument(
          "array length={} at byte {} needs {} bytes each, but {} bytes follow: the file ({} "
          "bytes) "
          "is truncated or corrupt",
          value.count, at, min_bytes, in.remaining(), file_.bytes().size());
    }
  }
  if (value.element_type == GgufType::kString) {
    for (uint64_t i = 0; i < value.count; ++i) {
      const absl::StatusOr<std::string_view> s = in.ReadString("string", in.remaining());
      if (!s.ok()) return Annotate(s.status(), fmt::format("element {}", i));
    }
  } else {
    // No overflow: the product was checked above, or the count is 1.
    RETURN_IF_ERROR(in.Skip("value", value.count * FixedSize(value.element_type)));
  }
  if (value.element_type == GgufType::kBool) {
    for (uint64_t i = 0; i < value.count; ++i) {
      const auto b = static_cast<uint8_t>(file_.bytes()[value.offset + i]);
      if (b > 1) return InvalidArgument("bool={} at byte {} must be 0 or 1", b, value.offset + i);
    }
  }
  values_.emplace(key, value);
  return absl::OkStatus();
}

absl::Status GgufFile::ParseTensorInfo(ByteReader& in, uint64_t index,
                                       std::vector<Tensor>& tensors) const {
  Tensor tensor{.info_at = in.pos()};
  const absl::StatusOr<std::string_view> name = in.ReadString("name", kMaxTensorNameBytes);
  if (!name.ok()) return Annotate(name.status(), fmt::format("tensor {}", index));
  tensor.name = std::string(*name);
  const std::string where =
      fmt::format("tensor {} (described at byte {})", Printable(tensor.name), tensor.info_at);
  if (tensor.name.empty()) return InvalidArgument("{}: empty name", where);
  const absl::StatusOr<uint32_t> num_dims = in.Read<uint32_t>("n_dims");
  if (!num_dims.ok()) return Annotate(num_dims.status(), where);
  if (*num_dims < 1 || *num_dims > kMaxDims) {
    return InvalidArgument("{}: n_dims={} must be in [1, {}]", where, *num_dims, kMaxDims);
  }
  tensor.view.rank = static_cast<int32_t>(*num_dims);
  uint64_t dims[kMaxDims] = {1, 1, 1, 1};
  int64_t num_elements = 1;
  for (uint32_t i = 0; i < *num_dims; ++i) {
    const absl::StatusOr<uint64_t> dim = in.Read<uint64_t>("dimension");
    if (!dim.ok()) return Annotate(dim.status(), where);
    if (*dim == 0 || *dim > static_cast<uint64_t>(INT64_MAX)) {
      return InvalidArgument("{}: dim[{}]={} must be in [1, 2^63)", where, i, *dim);
    }
    dims[i] = *dim;
    if (__builtin_mul_overflow(num_elements, static_cast<int64_t>(*dim), &num_elements)) {
      return InvalidArgument("{}: the product of its dimensions, dim[{}]={} included, overflows",
                             where, i, *dim);
    }
    // The file lists the innermost dimension first.
    tensor.view.shape[*num_dims - 1 - i] = static_cast<int64_t>(*dim);
  }
  const absl::StatusOr<uint32_t> type = in.Read<uint32_t>("type");
  if (!type.ok()) return Annotate(type.status(), where);
  const std::optional<DType> dtype = DTypeFromGgml(*type);
  if (!dtype) {
    return Error(absl::StatusCode::kUnimplemented, "{}: type={} ({}) is not supported; known: {}",
                 where, *type, GgmlTypeName(*type), SupportedGgmlTypes());
  }
  tensor.view.dtype = *dtype;
  const DTypeInfo info = InfoOf(*dtype);
  if (dims[0] % static_cast<uint64_t>(info.block_size) != 0) {
    return InvalidArgument("{}: dim[0]={} must be a multiple of {}, the block size of {}", where,
                           dims[0], info.block_size, info.name);
  }
  int64_t num_bytes;
  if (__builtin_mul_overflow(num_elements / info.block_size, int64_t{info.block_bytes},
                             &num_bytes)) {
    return InvalidArgument("{}: its size in bytes overflows", where);
  }
  const absl::StatusOr<uint64_t> offset = in.Read<uint64_t>("offset");
  if (!offset.ok()) return Annotate(offset.status(), where);
  tensor.offset = *offset;
  tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> GgufFile::Alignment() const {
  constexpr const char* kKey = "general.alignment";
  const auto it = values_.find(kKey);
  if (it == values_.end()) return kDefaultAlignment;
  if (it->second.type != GgufType::kUint32) {
    return InvalidArgument("key {} at byte {} is {}, must be uint32", kKey, it->second.offset,
                           NameOf(it->second.type));
  }
  ByteReader in(file_.bytes(), it->second.offset);
  ASSIGN_OR_RETURN(const auto alignment, in.Read<uint32_t>(kKey));
  if (!std::has_single_bit(alignment) || alignment < kMinAlignment || alignment > kMaxAlignment) {
    return InvalidArgument("{}={} at byte {} must be a power of two in [{}, {}]", kKey, alignment,
                           it->second.offset, kMinAlignment, kMaxAlignment);
  }
  return alignment;
}

absl::Status GgufFile::PlaceTensors(std::vector<Tensor> tensors, size_t data_start) {
  const uint64_t file_size = file_.bytes().size();
  for (Tensor& t : tensors) {
    const uint64_t num_bytes = t.view.num_bytes();
    uint64_t begin;
    uint64_t end;
    if (__builtin_add_overflow(uint64_t{data_start}, t.offset, &begin) ||
        __builtin_add_overflow(begin, num_bytes, &end)) {
      return InvalidArgument("tensor {} (described at byte {}): offset={} + {} bytes overflows",
                             Printable(t.name), t.info_at, t.offset, num_bytes);
    }
    if (end > file_size) {
      return InvalidArgument(
          "truncated: tensor {} (described at byte {}) {} with offset={} ends at byte {}, but the "
          "file has only {}",
          Printable(t.name), t.info_at, t.view.ToString(), t.offset, end, file_size);
    }
    t.view.data = file_.bytes().data() + begin;
    if (!tensors_.emplace(t.name, t.view).second) {
      return InvalidArgument("tensor {} (described at byte {}) occurs twice", Printable(t.name),
                             t.info_at);
    }
    tensor_names_.push_back(t.name);
    tensor_bytes_ += num_bytes;  // no overflow: disjoint parts of the file, or refused below
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const Tensor& a, const Tensor& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < tensors.size(); ++i) {
    const Tensor& before = tensors[i - 1];
    if (tensors[i].offset - before.offset < before.view.num_bytes()) {
      return InvalidArgument(
          "tensor {} (described at byte {}): offset={} overlaps tensor {}, which "
          "has {} bytes from offset {}",
          Printable(tensors[i].name), tensors[i].info_at, tensors[i].offset, Printable(before.name),
          before.view.num_bytes(), before.offset);
    }
  }
  return absl::OkStatus();
}

std::optional<TensorView> GgufFile::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return std::nullopt;
  return it->second;
}

}  // namespace quire
