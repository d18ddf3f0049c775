// models/plan/formula.h -- what a part of a cache takes, and the formula that says so.
#pragma once

#include <string>

#include "models/plan/plan.h"

namespace quire {

// Of one layer and sequence, whatever its length: states, and buffers when they are full.
int64_t FixedBytes(const CachePart& part, const KvFormat& kv);

PartPlan PlanPart(const PartGroup& group, const KvFormat& kv, int64_t context);

// "61 layers x 128 heads x 320 x 2 B": without the compression; empty if there is none. `num_heads`
// explains what keys and values of every head would take.
std::string PlainFormula(const PartPlan& part, int64_t num_heads, const KvFormat& kv);

}  // namespace quire
