#include "bench/simulation/step_cost.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "scheduler/sequence.h"

namespace quire {
namespace {

constexpr std::string_view kFormat = "quire step cost 2";

std::vector<double> Features(const StepShape& shape) {
  std::vector<double> features;
  const StepCostModel cost;
  StepCostModel::VisitFields(
      cost, [&](const char*, double, const auto& feature) { features.push_back(feature(shape)); });
  return features;
}

// Solves the normal equations of the columns in `passive` by Cholesky with a tiny ridge, which
// keeps columns that depend on each other apart.
std::vector<double> SolvePassive(const std::vector<double>& gram, const std::vector<double>& rhs,
                                 size_t n, const std::vector<size_t>& passive) {
  const size_t m = passive.size();
  std::vector<double> l(m * m), y(m);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = gram[passive[i] * n + passive[j]];
      if (i == j) sum += 1e-12;
      for (size_t k = 0; k < j; ++k) sum -= l[i * m + k] * l[j * m + k];
      l[i * m + j] = i == j ? std::sqrt(std::max(sum, 1e-14)) : sum / l[j * m + j];
    }
    y[i] = rhs[passive[i]];
    for (size_t k = 0; k < i; ++k) y[i] -= l[i * m + k] * y[k];
    y[i] /= l[i * m + i];
  }
  for (size_t i = m; i-- > 0;) {
    for (size_t k = i + 1; k < m; ++k) y[i] -= l[k * m + i] * y[k];
    y[i] /= l[i * m + i];
  }
  return y;
}

}  // namespace

StepCostModel BuiltInStepCost() {
  return {.fixed = 6800,
          .prefill_token = 196,
          .seq = 258,
          .prefill_key = 0.13,
          .decode_key = 1.4,
          .copy = 26};
}

StepShape ShapeOf(const ScheduledBatch& batch) {
  StepShape shape{.seqs = static_cast<double>(batch.seqs.size()),
                  .copies = static_cast<double>(batch.copies.size())};
  for (const ScheduledSeq& s : batch.seqs) {
    const double n = s.num_tokens;
    const double keys = n * s.first_pos + n * (n + 1) / 2;
    const bool decode = s.num_tokens - s.num_drafts == 1;
    (decode ? shape.decode_tokens : shape.prefill_tokens) += n;
    (decode ? shape.decode_keys : shape.prefill_keys) += keys;
    shape.rows += (s.num_samples > 0 ? 1 : 0) + s.num_drafts + s.num_prompt_logprobs;
  }
  return shape;
}

double StepCostModel::StepUs(const StepShape& shape) const {
  double us = 0;
  VisitFields(*this, [&](const char*, double coefficient, const auto& feature) {
    us += coefficient * feature(shape);
  });
  return us;
}

std::vector<double> NonNegativeLeastSquares(std::span<const double> rows, size_t num_columns,
                                            std::span<const double> b) {
  const size_t n = num_columns;
  CHECK(rows.size() == n * b.size(), "{} values, {} rows of {}", rows.size(), b.size(), n);
  // Columns scaled to length 1, so that tolerances mean the same for all.
  std::vector<double> scale(n), gram(n * n), rhs(n);
  for (size_t r = 0; r < b.size(); ++r) {
    for (size_t i = 0; i < n; ++i) scale[i] += rows[r * n + i] * rows[r * n + i];
  }
  for (double& s : scale) s = s > 0 ? 1 / std::sqrt(s) : 0;
  for (size_t r = 0; r < b.size(); ++r) {
    for (size_t i = 0; i < n; ++i) {
      const double a = rows[r * n + i] * scale[i];
      rhs[i] += a * b[r];
      for (size_t j = 0; j < n; ++j) gram[i * n + j] += a * rows[r * n + j] * scale[j];
    }
  }
  std::vector<double> x(n);
  std::vector<bool> in_passive(n);
  const double tolerance = 1e-10 * (1 + *std::max_element(rhs.begin(), rhs.end()));
  for (size_t round = 0; round < 10 * n; ++round) {
    // The column whose growth lowers the error most.
    size_t best = n;
    double steepest = tolerance;
    for (size_t i = 0; i < n; ++i) {
      if (in_passive[i] || scale[i] == 0) continue;
      double gradient = rhs[i];
      for (size_t j = 0; j < n; ++j) gradient -= gram[i * n + j] * x[j];
      if (gradient > steepest) {
        steepest = gradient;
        best = i;
      }
    }
    if (best == n) break;
    in_passive[best] = true;
    for (;;) {
      std::vector<size_t> passive;
      for (size_t i = 0; i < n; ++i) {
        if (in_passive[i]) passive.push_back(i);
      }
      const std::vector<double> z = SolvePassive(gram, rhs, n, passive);
      double step = 1;  // towards z, as far as all stay non-negative
      for (size_t k = 0; k < passive.size(); ++k) {
        if (z[k] > 0) continue;
        const double from = x[passive[k]];
        step = std::min(step, from > 0 ? from / (from - z[k]) : 0.0);
      }
      for (size_t k = 0; k < passive.size(); ++k) {
        double& value = x[passive[k]];
        value += step * (z[k] - value);
        if (z[k] <= 0 && value <= 1e-15) {
          value = 0;
          in_passive[passive[k]] = false;
        }
      }
      if (step == 1) break;
    }
  }
  for (size_t i = 0; i < n; ++i) x[i] *= scale[i];
  return x;
}

absl::StatusOr<StepFit> FitStepCost(std::span<const MeasuredStep> steps) {
  const size_t n = Features({}).size();
  if (steps.size() < n) {
    return InvalidArgument("steps={} must be at least {}, the number of coefficients", steps.size(),
                           n);
  }
  for (const MeasuredStep& step : steps) {
    if (!(step.us > 0)) {
      return InvalidArgument("step {}: us={} must be above 0", step.name, step.us);
    }
  }
  // Errors relative to the measured time would favour steps that happened to be short, so that a
  // noisy machine would look faster than it is; from the second round on they are relative to the
  // model's time.
  StepFit fit;
  for (int round = 0; round < 5; ++round) {
    std::vector<double> rows, times;
    for (const MeasuredStep& step : steps) {
      const double unit = std::max(round == 0 ? step.us : fit.cost.StepUs(step.shape), 1e-3);
      for (const double feature : Features(step.shape)) rows.push_back(feature / unit);
      times.push_back(step.us / unit);
    }
    const std::vector<double> x = NonNegativeLeastSquares(rows, n, times);
    size_t i = 0;
    StepCostModel::VisitFields(fit.cost, [&](const char*, double& c, const auto&) { c = x[i++]; });
  }
  for (const MeasuredStep& step : steps) {
    fit.errors.push_back(fit.cost.StepUs(step.shape) / step.us - 1);
    fit.mean_error += std::abs(fit.errors.back()) / static_cast<double>(steps.size());
    fit.max_error = std::max(fit.max_error, std::abs(fit.errors.back()));
  }
  return fit;
}

std::string StepCostJson(const StepCostModel& cost, std::string_view model) {
  JsonWriter w;
  w.BeginObject();
  w.Key("format");
  w.String(kFormat);
  w.Key("model");
  w.String(model);
  StepCostModel::VisitFields(cost, [&](const char* name, double value, const auto&) {
    w.Key(name);
    w.Double(value);
  });
  w.EndObject();
  return w.text();
}

absl::StatusOr<StepCostModel> ParseStepCost(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, Json::Parse(text, {.max_bytes = 1 << 20, .max_depth = 4}));
  if (json["format"].as_string() != kFormat) {
    return InvalidArgument("format={} must be \"{}\"", json["format"].Dump(), kFormat);
  }
  StepCostModel cost;
  absl::Status status;
  size_t known = 2;  // format, model
  StepCostModel::VisitFields(cost, [&](const char* name, double& value, const auto&) {
    const std::optional<double> given = json[name].as_double();
    if (!status.ok()) return;
    if (!given || !(*given >= 0 && *given <= 1e12)) {
      status = InvalidArgument("{}={} must be a number in [0, 1e12]", name, json[name].Dump());
      return;
    }
    value = *given;
    ++known;
  });
  RETURN_IF_ERROR(status);
  const size_t members = json.size() + (json.Has("model") ? 0 : 1);
  if (members != known) {
    return InvalidArgument("{} members, {} are known; fit again with this version", members, known);
  }
  if (cost.StepUs({.decode_tokens = 1, .seqs = 1, .rows = 1, .decode_keys = 1}) <= 0) {
    return InvalidArgument("fixed_us={} and all others are 0: a step must take time", cost.fixed);
  }
  return cost;
}

absl::StatusOr<StepCostModel> ReadStepCost(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error(absl::StatusCode::kNotFound, "cost={} can't be opened", path);
  std::string text(size_t{1} << 20, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  absl::StatusOr<StepCostModel> cost = ParseStepCost(text);
  if (!cost.ok()) return Annotate(cost.status(), path);
  return cost;
}

}  // namespace quire
