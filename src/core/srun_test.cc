#include "core/srun.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace thinwire::srun_test {
namespace {

using Variables = std::map<std::string, std::string>;

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Variables without(Variables base, const char* name) {
  base.erase(name);
  return base;
}

Variables read(const Variables& variables) {
  return srun_variables([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

/// Task 5 of 8 of `srun -n 8`, of a job whose first hosts are busy with another step.
const Variables kTask = {{"SLURM_JOB_ID", "1203"},
                         {"SLURM_STEP_ID", "2"},
                         {"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_STEP_NUM_TASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_JOB_NODELIST", "n[1-12]"},
                         {"SLURM_STEP_NODELIST", "n[09-12]"}};

const Variables kRead = {{"RANK", "5"},          {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "n09"}, {"MASTER_PORT", "29626"}, {"THINWIRE_JOB", "slurm-1203.2"}};

TEST(FirstHost, OfNodeLists) {
  const Variables cases = {{"localhost", "localhost"},
                           {"node[01-03,7],gpu2", "node01"},
                           {"gpu2,node[01-03,7]", "gpu2"},
                           {"a[1-2]b[3-4]", "a1b3"},
                           {"a[7]", "a7"},
                           {"a[9-10,12]", "a9"},
                           {"a[007-123]-ib.example.org", "a007-ib.example.org"},
                           {"[10-12]", "10"},
                           {"10.0.0.1,10.0.0.2", "10.0.0.1"},
                           {"rack_1-node[2,4,6-8],x", "rack_1-node2"}};
  for (const auto& [list, host] : cases) EXPECT_EQ(first_host(list), host) << list;
}

TEST(FirstHost, AnythingElseIsRefused) {
  for (const char* text :
       {"",     ",",     "a,",     ",a",      "a,,b", "a[",  "a[]",      "a[1",    "a[1-]",  "a[-2]", "a[1,]",
        "a[x]", "a[1-2", "a[3-1]", "a[10-9]", "a]",   "a b", "a[1-2-3]", "(null)", "a[[1]]", "a,b["}) {
    EXPECT_EQ(first_host(text), std::nullopt) << text;
  }
}

TEST(Srun, PlaceOfATask) {
  EXPECT_EQ(read(kTask), kRead);
  EXPECT_EQ(read(without(kTask, "SLURM_STEP_NUM_TASKS")), kRead);
  EXPECT_EQ(read(with(kTask, {{"SLURM_STEP_NODELIST", ""}}))["MASTER_ADDR"], "n1");
  EXPECT_EQ(read(with(kTask, {{"RANK", ""}, {"WORLD_SIZE", ""}, {"MASTER_ADDR", ""}})), kRead);
}

TEST(Srun, TorchrunsVariablesWin) {
  EXPECT_EQ(read(with(kTask, {{"RANK", "0"}, {"WORLD_SIZE", "2"}})), Variables());
  for (const auto& [name, value] : Variables{{"LOCAL_RANK", "0"},
                                             {"MASTER_ADDR", "10.1.1.1"},
                                             {"MASTER_PORT", "29500"},
                                             {"THINWIRE_JOB", "mine"},
                                             {"RANK", "5"},
                                             {"WORLD_SIZE", "8"}}) {
    EXPECT_EQ(read(with(kTask, {{name, value}})), with(kRead, {{name, value}})) << name;
  }
}

TEST(Srun, OneOfTwoMustAgree) {
  EXPECT_NE(error_of(with(kTask, {{"WORLD_SIZE", "4"}}))
                .find("WORLD_SIZE=4, but srun gave this task SLURM_NTASKS=8"),
            std::string::npos);
  EXPECT_NE(error_of(with(kTask, {{"RANK", "0"}})).find("unset RANK, or set both"), std::string::npos);
}

TEST(Srun, ElsewhereNothing) {
  EXPECT_EQ(read({}), Variables());
  // sbatch's own script, with and without --ntasks.
  const Variables batch = {
      {"SLURM_JOB_ID", "1203"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_NODELIST", "n[1-12]"}};
  EXPECT_EQ(read(batch), Variables());
  EXPECT_EQ(read(with(batch, {{"SLURM_NTASKS", "8"}})), Variables());
  // salloc's shell is task 0 of 1.
  EXPECT_EQ(read(with(kTask, {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}})), Variables());
}

TEST(Srun, PortsOfJobsAndSteps) {
  std::map<std::string, int> uses;
  for (int job = 77'000; job < 78'500; ++job) {
    for (const char* step : {"0", "1", "7"}) {
      const auto found = read(with(kTask, {{"SLURM_JOB_ID", std::to_string(job)}, {"SLURM_STEP_ID", step}}));
      ASSERT_EQ(++uses[found.at("MASTER_PORT")], 1) << job << " " << step;
    }
  }
  EXPECT_GE(uses.begin()->first, "20000");
  EXPECT_LT(uses.rbegin()->first, "32000");
  const auto largest = read(with(kTask, {{"SLURM_JOB_ID", "4294967295"}, {"SLURM_STEP_ID", "4294967295"}}));
  EXPECT_EQ(largest.at("THINWIRE_JOB"), "slurm-4294967295.4294967295");
}

TEST(Srun, WhatIsMissingIsNamed) {
  for (const char* name : {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_LOCALID"}) {
    const std::string error = error_of(without(kTask, name));
    EXPECT_EQ(error.find(std::string(name) + " is not set, though srun sets it"), 0U) << error;
  }
  const std::string error = error_of(without(without(kTask, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST"));
  EXPECT_EQ(error.find("SLURM_JOB_NODELIST is not set"), 0U) << error;
}

TEST(Srun, ValuesThatCannotBeAreNamed) {
  const Variables cases = {{"SLURM_PROCID", "8"}, {"SLURM_JOB_ID", "x"},   {"SLURM_LOCALID", "-1"},
                           {"LOCAL_RANK", "8"},   {"MASTER_PORT", "http"}, {"SLURM_STEP_NODELIST", "n[1-"}};
  for (const auto& [name, value] : cases) {
    const std::string error = error_of(with(kTask, {{name, value}}));
    EXPECT_EQ(error.find(name + "=" + value + ": "), 0U) << error;
    EXPECT_NE(error.find("set "), std::string::npos) << error;
  }
  const std::string none = error_of(with(kTask, {{"SLURM_NTASKS", "0"}, {"SLURM_STEP_NUM_TASKS", "0"}}));
  EXPECT_EQ(none.find("SLURM_NTASKS=0: a number from 1 to"), 0U) << none;
}

}  // namespace
}  // namespace thinwire::srun_test
