// Slices of JSON texts: what was written, in its order.
#include "base/json_slice.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/json.h"

namespace quire {
namespace {

TEST(JsonSlice, MembersAndElements) {
  const std::string text =
      " { \"b\" : [1, {\"x\":\"]}\"}] ,\"a\":\"q\\\"}\" , \"c\":-1.5e3,\"d\":{} ,\"b\":null } ";
  EXPECT_EQ(RawMember(text, "a"), "\"q\\\"}\"");
  EXPECT_EQ(RawMember(text, "b"), "null");  // the last, as Json has it
  EXPECT_EQ(RawMember(text, "c"), "-1.5e3");
  EXPECT_EQ(RawMember(text, "d"), "{}");
  EXPECT_EQ(RawMember(text, "e"), std::nullopt);
  const auto members = RawMembers(text);
  ASSERT_EQ(members.size(), 5u);
  EXPECT_EQ(members[0].first, "b");
  EXPECT_EQ(members[0].second, "[1, {\"x\":\"]}\"}]");
  const auto elements = RawElements(members[0].second);
  ASSERT_EQ(elements.size(), 2u);
  EXPECT_EQ(elements[1], "{\"x\":\"]}\"}");
  EXPECT_TRUE(RawElements("[ ]").empty());
  EXPECT_TRUE(RawElements("{}").empty());
  EXPECT_TRUE(RawMembers("[1]").empty());
  EXPECT_TRUE(RawMembers("").empty());
}

// A random value, its text with random white space.
std::string RandomJson(std::mt19937& random, int depth) {
  const auto space = [&] { return std::string(random() % 3, " \n\t"[random() % 3]); };
  switch (random() % (depth > 0 ? 6 : 4)) {
    case 0:
      return "null";
    case 1:
      return std::to_string(static_cast<int>(random() % 2000) - 1000);
    case 2:
      return "true";
    case 3:
      return "\"a\\\"b]}{[,: \\\\\"";
    case 4: {
      std::string text = "[" + space();
      const auto count = random() % 4;
      for (unsigned i = 0; i < count; ++i) {
        text += (i > 0 ? "," : "") + space() + RandomJson(random, depth - 1) + space();
      }
      return text + "]";
    }
    default: {
      std::string text = "{" + space();
      const auto count = random() % 4;
      for (unsigned i = 0; i < count; ++i) {
        text += (i > 0 ? "," : "") + space() + "\"k" + std::to_string(i) + "\"" + space() + ":" +
                space() + RandomJson(random, depth - 1) + space();
      }
      return text + "}";
    }
  }
}

// Every slice, parsed by itself, is what the parser found at its place.
void ExpectSlices(const std::string& text, const Json& value) {
  if (value.is_object()) {
    const auto members = RawMembers(text);
    ASSERT_EQ(members.size(), value.size()) << text;
    for (const auto& [key, raw] : members) {
      const auto parsed = Json::Parse(raw);
      ASSERT_TRUE(parsed.ok()) << raw;
      EXPECT_EQ(parsed->Dump(), value[key].Dump());
      ExpectSlices(std::string(raw), value[key]);
    }
  } else if (value.is_array()) {
    const auto elements = RawElements(text);
    ASSERT_EQ(elements.size(), value.size()) << text;
    for (size_t i = 0; i < elements.size(); ++i) {
      const auto parsed = Json::Parse(elements[i]);
      ASSERT_TRUE(parsed.ok()) << elements[i];
      EXPECT_EQ(parsed->Dump(), value.at(i).Dump());
      ExpectSlices(std::string(elements[i]), value.at(i));
    }
  }
}

TEST(JsonSlice, RandomValues) {
  std::mt19937 random(7);
  int containers = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string text = RandomJson(random, 4);
    const auto value = Json::Parse(text);
    ASSERT_TRUE(value.ok()) << text;
    containers += value->is_array() || value->is_object();
    ExpectSlices(text, *value);
  }
  EXPECT_GT(containers, 200);
}

}  // namespace
}  // namespace quire
