// models/plan/render.h -- plans as a table for people, one column per model, or as JSON.
#pragma once

#include <string>
#include <vector>

#include "models/plan/plan.h"

namespace quire {

// With one model every line shows its formula; with several, formulas follow the table.
std::string PlanText(const std::vector<ModelPlan>& plans);

// An array with one object per model; bytes as integers.
std::string PlanJson(const std::vector<ModelPlan>& plans);

}  // namespace quire
