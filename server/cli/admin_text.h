// server/cli/admin_text.h -- what `quire admin` prints, for people. Pure.
#pragma once

#include <string>

#include "quire/v1/quire.pb.h"

namespace quire {

std::string StatsText(const ::quire::v1::BlockStats& stats);
std::string BlocksText(const ::quire::v1::BlockBatch& all);
std::string RequestsText(const ::quire::v1::RequestBatch& all, bool tables);
// Runs of blocks without a branch are one line.
std::string TreeText(const ::quire::v1::PrefixBatch& all);
std::string MemoryText(const ::quire::v1::MemoryProfile& memory);
std::string PinsText(const ::quire::v1::ListPinsResponse& pins);
std::string ConfigText(const ::quire::v1::Config& config);
std::string TransferText(const ::quire::v1::CacheTransfer& transfer);

}  // namespace quire
