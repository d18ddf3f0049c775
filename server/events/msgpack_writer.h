// server/events/msgpack_writer.h -- writes msgpack: each value in its shortest form, floats always
// with 64 bits. Source: the msgpack specification. Thread: any.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace quire {

class MsgpackWriter {
 public:
  void Nil() { Byte(0xc0); }
  void Uint(uint64_t v) {
    if (v < 0x80) {
      Byte(static_cast<uint8_t>(v));
    } else if (v <= 0xff) {
      BigEndian(0xcc, v, 1);
    } else if (v <= 0xffff) {
      BigEndian(0xcd, v, 2);
    } else if (v <= 0xffffffff) {
      BigEndian(0xce, v, 4);
    } else {
      BigEndian(0xcf, v, 8);
    }
  }
  void Double(double v) { BigEndian(0xcb, std::bit_cast<uint64_t>(v), 8); }
  // REQUIRES, of all below: less than 2^32 bytes or elements.
  void String(std::string_view text) {
    if (text.size() < 32) {
      Byte(static_cast<uint8_t>(0xa0 | text.size()));
    } else {
      Head(0xd9, text.size());
    }
    out_ += text;
  }
  void Binary(std::string_view bytes) {
    Head(0xc4, bytes.size());
    out_ += bytes;
  }
  void Array(size_t size) {
    if (size < 16) {
      Byte(static_cast<uint8_t>(0x90 | size));
    } else if (size <= 0xffff) {
      BigEndian(0xdc, size, 2);
    } else {
      BigEndian(0xdd, size, 4);
    }
  }
  // REQUIRES: size < 16.
  void SmallMap(size_t size) { Byte(static_cast<uint8_t>(0x80 | size)); }
  // With a head of 16 bits, whatever the size.
  void Map16(size_t size) { BigEndian(0xde, size, 2); }

  std::string Take() { return std::move(out_); }

 private:
  void Byte(uint8_t byte) { out_ += static_cast<char>(byte); }
  void BigEndian(uint8_t type, uint64_t v, int bytes) {
    Byte(type);
    for (int i = bytes - 1; i >= 0; --i) Byte(static_cast<uint8_t>(v >> (8 * i)));
  }
  void Head(uint8_t type8, size_t size) {  // 8, 16 and 32 bits of size
    if (size <= 0xff) {
      BigEndian(type8, size, 1);
    } else if (size <= 0xffff) {
      BigEndian(static_cast<uint8_t>(type8 + 1), size, 2);
    } else {
      BigEndian(static_cast<uint8_t>(type8 + 2), size, 4);
    }
  }

  std::string out_;
};

}  // namespace quire
