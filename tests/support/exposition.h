// tests/support/exposition.h -- reads a page in Prometheus' text format (version 0.0.4), and what
// holds for every page.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>
#include <string>

namespace quire::metrics_test {

class Page {
 public:
  static Page Parse(const std::string& text) {
    Page page;
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
      if (line.rfind("# TYPE ", 0) == 0) {
        std::istringstream words(line.substr(7));
        std::string name, type;
        words >> name >> type;
        EXPECT_TRUE(page.types_.emplace(name, type).second) << name << " is there twice";
      }
      if (line.empty() || line[0] == '#') continue;
      const size_t space = line.rfind(' ');
      EXPECT_TRUE(
          page.samples_.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
          << line << " is there twice";
    }
    return page;
  }

  bool has(const std::string& series) const { return samples_.count(series) > 0; }
  double at(const std::string& series) const {
    const auto it = samples_.find(series);
    EXPECT_NE(it, samples_.end()) << series;
    return it == samples_.end() ? std::nan("") : it->second;
  }
  std::string type_of(const std::string& name) const {
    const auto it = types_.find(name);
    return it == types_.end() ? "" : it->second;
  }
  // Over all labels.
  double SumOf(const std::string& name) const {
    double sum = 0;
    for (const auto& [series, value] : samples_) sum += NameOf(series) == name ? value : 0;
    return sum;
  }
  size_t CountOf(const std::string& name) const {
    size_t count = 0;
    for (const auto& [series, value] : samples_) count += NameOf(series) == name;
    return count;
  }

  // No NaN, nothing negative; of each histogram the buckets ascend, and the last one is the count.
  void ExpectSound() const {
    EXPECT_FALSE(samples_.empty());
    for (const auto& [series, value] : samples_) {
      EXPECT_TRUE(std::isfinite(value)) << series;
      EXPECT_GE(value, 0) << series;
    }
    std::map<std::string, std::map<double, double>> buckets;  // by count series
    for (const auto& [series, value] : samples_) {
      const std::string name = NameOf(series);
      const size_t le = series.find("le=\"");
      if (le == std::string::npos || name.size() < 7 || name.substr(name.size() - 7) != "_bucket") {
        continue;
      }
      const std::string bound = series.substr(le + 4, series.find('"', le + 4) - le - 4);
      std::string labels = series.substr(name.size());
      const size_t begin = labels.find("le=\"");
      labels.erase(begin, labels.find('"', begin + 4) + 1 - begin);
      if (labels.size() > 2 && labels[labels.size() - 2] == ',') labels.erase(labels.size() - 2, 1);
      if (labels == "{}") labels = "";
      buckets[name.substr(0, name.size() - 7) + "_count" + labels][std::stod(bound)] = value;
    }
    EXPECT_FALSE(buckets.empty());
    for (const auto& [count, of] : buckets) {
      double before = 0;
      for (const auto& [bound, value] : of) {
        EXPECT_GE(value, before) << count << " at " << bound;
        before = value;
      }
      EXPECT_TRUE(std::isinf(of.rbegin()->first)) << count;
      EXPECT_EQ(at(count), before) << count;
    }
  }

  bool NothingFellSince(const Page& before) const {
    bool sound = true;
    for (const auto& [series, value] : before.samples_) {
      const std::string name = NameOf(series);
      const bool is_gauge = type_of(name) == "gauge";
      const auto now = samples_.find(series);
      if (is_gauge) continue;
      EXPECT_NE(now, samples_.end()) << series;
      if (now == samples_.end() || now->second < value) sound = false;
    }
    return sound;
  }

 private:
  static std::string NameOf(const std::string& series) {
    return series.substr(0, series.find('{'));
  }

  std::map<std::string, double> samples_;  // "name{labels}"
  std::map<std::string, std::string> types_;
};

}  // namespace quire::metrics_test
