#include "kernels/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/block_format.h"
#include "kernels/linear.h"

namespace quire::kernels {
namespace {

constexpr Quantization kAll[] = {Quantization::kNone, Quantization::kInt8, Quantization::kInt4};
constexpr int kTurns = 4;
constexpr float kMostCode = 15.0f;

template <typename T>
void Put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

constexpr uint16_t kNan = 0x7e00;

// What fp16 scales can't hold becomes NaN: seen at once, not rounded away.
bool Representable(const float* x) {
  return std::all_of(x, x + kSubBlock, [](float v) { return std::abs(v) <= 65504.0f; });
}

// As ggml's quantiser: the scale that is divided by is not yet rounded to fp16.
void PutQ8(const float* x, std::byte* block) {
  float max = 0.0f;
  for (int i = 0; i < kSubBlock; ++i) max = std::max(max, std::abs(x[i]));
  const float d = max / 127.0f;
  const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
  Put(block, FloatToF16(d));
  for (int i = 0; i < kSubBlock; ++i) {
    Put(block + 2 + i, static_cast<int8_t>(std::round(x[i] * inverse)));
  }
}

// Values scale * code + min, as they are stored.
struct Line {
  uint16_t scale = 0, min = 0;  // fp16
  std::array<uint8_t, kSubBlock> codes{};
  double error = 0;
};

Line Nearest(const float* x, float scale, float min) {
  Line line{.scale = FloatToF16(scale), .min = FloatToF16(min)};
  const float s = F16ToFloat(line.scale), m = F16ToFloat(line.min);
  const float inverse = s > 0.0f ? 1.0f / s : 0.0f;
  for (size_t i = 0; i < kSubBlock; ++i) {
    const float code = std::clamp(std::round((x[i] - m) * inverse), 0.0f, kMostCode);
    line.codes[i] = static_cast<uint8_t>(code);
    const auto e = static_cast<double>(x[i] - (s * code + m));
    line.error += e * e;
  }
  return line;
}

void PutQ4(const float* x, std::byte* block) {
  const auto [low, high] = std::minmax_element(x, x + kSubBlock);
  Line best = Nearest(x, (*high - *low) / kMostCode, *low);
  Line line = best;
  for (int turn = 0; turn < kTurns; ++turn) {
    double q = 0, qq = 0, v = 0, qv = 0;
    for (size_t i = 0; i < kSubBlock; ++i) {
      const double code = line.codes[i], value = static_cast<double>(x[i]);
      q += code;
      qq += code * code;
      v += value;
      qv += code * value;
    }
    const double spread = kSubBlock * qq - q * q;
    if (!(spread > 0)) break;  // one code for all
    const double scale = (kSubBlock * qv - q * v) / spread;
    line = Nearest(x, static_cast<float>(scale), static_cast<float>((v - scale * q) / kSubBlock));
    if (line.error < best.error) best = line;
  }
  Put(block, best.scale);
  Put(block + 2, best.min);
  for (size_t i = 0; i < kSubBlock / 2; ++i) {
    Put(block + 4 + i, static_cast<uint8_t>(best.codes[i] | best.codes[i + kSubBlock / 2] << 4));
  }
}

}  // namespace

std::vector<std::byte> Quantized(DType from, const std::byte* source, int64_t count, DType to) {
  const DTypeInfo info = InfoOf(to);
  CHECK(to == DType::kBF16 || to == DType::kQ8_0 || to == DType::kQ4_1, "to {}", info.name);
  CHECK(count % info.block_size == 0, "{} values in blocks of {}", count, info.block_size);
  std::vector<float> values(static_cast<size_t>(count));
  Dequantize(from, source, count, values.data());
  std::vector<std::byte> out(BytesFor(to, values.size()));
  std::byte* at = out.data();
  for (int64_t i = 0; i < count; i += info.block_size, at += info.block_bytes) {
    const float* x = values.data() + i;
    if (to == DType::kBF16) {
      Put(at, FloatToBF16(*x));
      continue;
    }
    if (!Representable(x)) {
      std::fill_n(at, info.block_bytes, std::byte{1});
      Put(at, kNan);
    } else if (to == DType::kQ8_0) {
      PutQ8(x, at);
    } else {
      PutQ4(x, at);
    }
  }
  return out;
}

std::string_view NameOf(Quantization q) {
  switch (q) {
    case Quantization::kNone:
      return "none";
    case Quantization::kInt8:
      return "int8";
    case Quantization::kInt4:
      return "int4";
  }
  return "?";
}

absl::StatusOr<Quantization> FindQuantization(std::string_view name) {
  std::string names;
  for (const Quantization q : kAll) {
    if (name == NameOf(q)) return q;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", NameOf(q));
  }
  return InvalidArgument("quantization={} must be one of {}", name, names);
}

DType QuantizedType(Quantization q, DType stored, int64_t k) {
  if (q == Quantization::kNone || FormatOf(stored).is_block() || k % kSubBlock != 0) return stored;
  return q == Quantization::kInt8 ? DType::kQ8_0 : DType::kQ4_1;
}

}  // namespace quire::kernels
