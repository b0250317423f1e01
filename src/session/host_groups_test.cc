// Sessions in which the ranks of a host act as one worker, with every system, held against sessions of one
// rank per host that are handed what the host's ranks add up to.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <sstream>

#include "comm/message_tags.h"
#include "exchange/host_groups.h"
#include "session/contract_specs.h"
#include "session/count_allocations.h"
#include "tests/random_values.h"
#include "tests/tapped_communicator.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::host_groups_test {
namespace {

using Values = std::vector<float>;

/// Two buckets of matrices and vectors, one of which is shorter than a host has ranks; and a table.
const std::vector<BucketLayout> kBuckets = {{{"a.weight", 7 * 40, 7},
                                             {"a.bias", 7},
                                             {"b.weight", 2000 * 9, 2000},
                                             {"d.weight", 40 * 500, 40},
                                             {"c.weight", 30 * 9, 30}},
                                            {{"scale", 1}}};
constexpr std::size_t kTableRows = 50;
constexpr std::size_t kTableWidth = 3;
constexpr BucketId kTable = 2;
constexpr int kSteps = 4;

std::size_t elements_of(const BucketLayout& layout) {
  std::size_t elements = 0;
  for (const Parameter& one : layout) elements += one.elements;
  return elements;
}

Values gradient_of(std::size_t bucket, int step, int rank) {
  return normal_values(elements_of(kBuckets[bucket]), static_cast<std::uint32_t>(1000 * bucket) +
                                                          static_cast<std::uint32_t>(step * 50 + rank));
}

/// A rank's rows: some twice, in no order.
struct Rows {
  std::vector<std::uint32_t> indices;
  Values values;

  Rows(int step, int rank) {
    for (std::uint32_t k = 0; k < 12; ++k) {
      indices.push_back((static_cast<std::uint32_t>(7 * rank + 3 * step) + 11 * k * k) % kTableRows);
    }
    values = normal_values(indices.size() * kTableWidth, static_cast<std::uint32_t>(9000 + step * 50 + rank));
  }
  RowSparse view() const { return {indices, values, kTableRows, kTableWidth}; }
  Values dense() const {
    Values all(kTableRows * kTableWidth);
    for (std::size_t k = 0; k < indices.size(); ++k) {
      for (std::size_t j = 0; j < kTableWidth; ++j) {
        all[indices[k] * kTableWidth + j] += values[k * kTableWidth + j];
      }
    }
    return all;
  }
};

Values dense(const RowSparse& rows) {
  Values all(rows.rows * rows.width);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    std::ranges::copy(rows.row(k),
                      all.begin() + static_cast<std::ptrdiff_t>(rows.row_indices[k] * rows.width));
  }
  return all;
}

/// What a rank has after a step, of all buckets one after the other.
struct Ended {
  Values mean;
  Values residual;
  std::uint64_t sent = 0, formula = 0, guards = 0, inside = 0;
};

void append(Values& to, Span<const float> from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// [rank][step]; the means of all buckets whole.
std::vector<std::vector<Ended>> run(const std::string& spec, int hosts, int per_host) {
  std::vector<std::vector<Ended>> ranks(static_cast<std::size_t>(hosts * per_host));
  run_in_process(hosts * per_host, [&](Communicator& communicator) {
    Session session(spec, communicator, {.seed = 5, .ranks_per_host = per_host});
    for (const BucketLayout& layout : kBuckets) session.add_bucket(layout);
    session.add_rows("table", kTableRows, kTableWidth);
    for (int step = 0; step < kSteps; ++step) {
      Ended ended;
      for (BucketId bucket = 0; bucket < kBuckets.size(); ++bucket) {
        Values gradient = gradient_of(bucket, step, communicator.rank());
        session.synchronize(bucket, gradient);
        append(ended.mean, gradient);
      }
      const Rows rows(step, communicator.rank());
      const Values table = dense(session.synchronize_rows(kTable, rows.view()));
      append(ended.mean, table);
      for (BucketId bucket = 0; bucket <= kTable; ++bucket) {
        const StepReport& report = session.report(bucket);
        EXPECT_TRUE(report.finite);
        ended.sent += report.wire.sent_bytes;
        ended.formula += report.formula_bytes;
        ended.guards += report.frame_header_bytes;
        ended.inside += report.host_bytes_sent;
      }
      EXPECT_TRUE(session.next_step());
      for (BucketId bucket = 0; bucket <= kTable; ++bucket) append(ended.residual, session.residual(bucket));
      ranks[static_cast<std::size_t>(communicator.rank())].push_back(std::move(ended));
    }
  });
  return ranks;
}

/// The mean over a host's ranks, in the order in which the rank at `place` adds them up.
template <class Of>
Values host_mean(int host, int per_host, int place, Of of) {
  Values sum = of(host * per_host + place);
  for (int shift = 1; shift < per_host; ++shift) {
    const Values other = of(host * per_host + (place + per_host - shift) % per_host);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  }
  for (float& value : sum) value *= 1 / static_cast<float>(per_host);
  return sum;
}

/// How the ranks of a host of `per_host` share the buckets, and the table's rows, as the one at `place` sees
/// it.
struct Shares {
  std::vector<HostGroups::Parts> buckets;
  std::vector<std::size_t> rows;

  Shares(int per_host, int place) {
    run_in_process(per_host, [&](Communicator& communicator) {
      const HostGroups groups(communicator, per_host);
      if (communicator.rank() != place) return;
      for (const BucketLayout& layout : kBuckets) buckets.push_back(groups.parts(layout));
      rows = groups.parts_of_rows(kTableRows);
    });
  }

  Values part_of(std::size_t bucket, Span<const float> whole, std::size_t place) const {
    Values part;
    for (const VectorChunk& slice : buckets[bucket].slices[place]) {
      EXPECT_EQ(slice.offset, part.size());
      append(part, whole.subspan(slice.begin, slice.count));
    }
    EXPECT_EQ(part.size(), buckets[bucket].begins[place + 1] - buckets[bucket].begins[place]);
    return part;
  }
  /// Of the means of all buckets.
  Values part_of_all(Span<const float> whole, std::size_t place) const {
    Values part;
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      const std::size_t elements = elements_of(kBuckets[bucket]);
      const Values own = part_of(bucket, whole.first(elements), place);
      append(part, own);
      whole = whole.subspan(elements, whole.size() - elements);
    }
    append(part, whole.subspan(rows[place] * kTableWidth, (rows[place + 1] - rows[place]) * kTableWidth));
    return part;
  }
};

/// The mean over a host of its ranks' rows [first, first + rows), added up in the order of ranks. Those that
/// no rank has are left out.
RowSparse mean_of_rows(int host, int per_host, int step, std::size_t first, std::size_t rows,
                       std::vector<std::uint32_t>& indices, Values& values) {
  Values sum(kTableRows * kTableWidth);
  std::vector<bool> there(kTableRows);
  for (int rank = host * per_host; rank < (host + 1) * per_host; ++rank) {
    const Rows own(step, rank);
    for (std::size_t k = 0; k < own.indices.size(); ++k) {
      there[own.indices[k]] = true;
    }
    const Values dense_rows = own.dense();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += dense_rows[i];
  }
  for (std::size_t row = first; row < first + rows; ++row) {
    if (!there[row]) continue;
    indices.push_back(static_cast<std::uint32_t>(row - first));
    for (std::size_t j = 0; j < kTableWidth; ++j) {
      values.push_back(sum[row * kTableWidth + j] * (1 / static_cast<float>(per_host)));
    }
  }
  return {indices, values, rows, kTableWidth};
}

/// What the ranks at `place` shall have: sessions of a rank per host, of the parts alone.
std::vector<std::vector<Ended>> wanted(const std::string& spec, int hosts, int per_host, int place) {
  std::vector<std::vector<Ended>> ranks(static_cast<std::size_t>(hosts));
  const Shares shares(per_host, place);
  const auto at = static_cast<std::size_t>(place);
  const std::size_t first = shares.rows[at];
  const std::size_t rows = shares.rows[at + 1] - first;
  run_in_process(hosts, [&](Communicator& communicator) {
    const int host = communicator.rank();
    Session session(spec, communicator, {.seed = 5});
    for (const auto& parts : shares.buckets) session.add_bucket(parts.own);
    session.add_rows("table", rows, kTableWidth);
    for (int step = 0; step < kSteps; ++step) {
      Ended ended;
      for (BucketId bucket = 0; bucket < kBuckets.size(); ++bucket) {
        const Values mean =
            host_mean(host, per_host, place, [&](int rank) { return gradient_of(bucket, step, rank); });
        Values part = shares.part_of(bucket, mean, at);
        session.synchronize(bucket, part);
        append(ended.mean, part);
      }
      std::vector<std::uint32_t> indices;
      Values values;
      const RowSparse own = mean_of_rows(host, per_host, step, first, rows, indices, values);
      const Values table = dense(session.synchronize_rows(kTable, own));
      append(ended.mean, table);
      for (BucketId bucket = 0; bucket <= kTable; ++bucket) {
        ended.sent += session.report(bucket).wire.sent_bytes;
      }
      session.next_step();
      for (BucketId bucket = 0; bucket <= kTable; ++bucket) append(ended.residual, session.residual(bucket));
      ranks[static_cast<std::size_t>(host)].push_back(std::move(ended));
    }
  });
  return ranks;
}

bool same_bits(const Values& one, const Values& other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
}

class Hosts : public testing::TestWithParam<std::string> {};

TEST_P(Hosts, AreWorkersWithTheMeanOfTheirRanks) {
  const std::string& spec = GetParam();
  std::vector<std::pair<int, int>> worlds = {{2, 2}, {2, 3}};
  if (!kSanitized) worlds.insert(worlds.end(), {{3, 2}, {1, 2}});
  for (const auto& [hosts, per_host] : worlds) {
    SCOPED_TRACE(testing::Message() << hosts << " hosts of " << per_host);
    const auto ranks = run(spec, hosts, per_host);
    const Shares shares(per_host, 0);
    for (int place = 0; place < per_host; ++place) {
      const auto reference = wanted(spec, hosts, per_host, place);
      for (int host = 0; host < hosts; ++host) {
        for (std::size_t step = 0; step < kSteps; ++step) {
          const Ended& ended = ranks[static_cast<std::size_t>(host * per_host + place)][step];
          const Ended& should = reference[static_cast<std::size_t>(host)][step];
          ASSERT_TRUE(same_bits(ended.mean, ranks[0][step].mean)) << "ranks differ in step " << step;
          ASSERT_TRUE(same_bits(shares.part_of_all(ended.mean, static_cast<std::size_t>(place)), should.mean))
              << "place " << place << " of host " << host << ", step " << step;
          ASSERT_TRUE(same_bits(ended.residual, should.residual)) << "place " << place << ", step " << step;
          ASSERT_EQ(ended.sent, ended.formula + ended.guards);
          ASSERT_GT(ended.inside, 0u);
        }
      }
    }
  }
}

/// All of a session's state but the number of its step.
std::string state_of(const Session& session) {
  StateWriter all;
  session.save(all);
  const StateReader reader(std::move(all));
  StateWriter rest;
  for (const std::string& name : reader.names("")) {
    if (name != "step") rest.copy(reader, name);
  }
  std::ostringstream text;
  rest.write(text);
  return text.str();
}

TEST_P(Hosts, ABadValueAnywhereUndoesTheStepOnAllRanks) {
  run_in_process(4, [&](Communicator& communicator) {
    Session session(GetParam(), communicator, {.ranks_per_host = 2});
    for (const BucketLayout& layout : kBuckets) session.add_bucket(layout);
    session.add_rows("table", kTableRows, kTableWidth);
    for (int step = 0; step < 7; ++step) {
      const std::string state = state_of(session);
      const bool spoilt = step % 2 == 1;
      const bool here = spoilt && communicator.rank() == 1;
      Values gradient = gradient_of(0, step, communicator.rank());
      Rows rows(step, communicator.rank());
      // In the part of each rank of the host, and in a row.
      if (here && step == 1) gradient[3] = std::numeric_limits<float>::quiet_NaN();
      if (here && step == 3) gradient.back() = std::numeric_limits<float>::infinity();
      if (here && step == 5) rows.values[4] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_EQ(session.synchronize(0, gradient).finite, !spoilt || step == 5);
      EXPECT_EQ(std::ranges::all_of(gradient, [](float x) { return std::isnan(x); }), spoilt && step != 5);
      const RowSparse mean = session.synchronize_rows(kTable, rows.view());
      EXPECT_EQ(session.report(kTable).finite, step != 5);
      EXPECT_EQ(!mean.values.empty() && std::isnan(mean.values[0]), step == 5);
      EXPECT_EQ(session.next_step(), !spoilt);
      if (spoilt) {
        EXPECT_EQ(state_of(session), state);
      }
    }
  });
}

TEST_P(Hosts, ResumedRunContinuesBitForBit) {
  std::vector<std::string> saved(4);
  std::vector<Values> straight(4), resumed(4);
  for (const bool resumes : {false, true}) {
    run_in_process(4, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      Session session(GetParam(), communicator, {.ranks_per_host = 2});
      session.add_bucket(kBuckets[0]);
      if (resumes) {
        std::istringstream stream(saved[rank]);
        session.load(StateReader(stream));
      }
      for (int step = resumes ? 3 : 0; step < 6; ++step) {
        Values gradient = gradient_of(0, step, communicator.rank());
        session.synchronize(0, gradient);
        session.next_step();
        if (step >= 3) append(resumes ? resumed[rank] : straight[rank], gradient);
        if (step != 2) continue;
        StateWriter writer;
        session.save(writer);
        std::ostringstream stream;
        writer.write(stream);
        saved[rank] = stream.str();
      }
    });
  }
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_TRUE(same_bits(straight[rank], resumed[rank]));
}

/// What times steps gives other bits in another run, and clip is refused.
std::vector<std::string> specs() {
  std::vector<std::string> some = kContractSpecs;
  std::erase_if(some, [](const std::string& spec) {
    return spec.find("auto") != std::string::npos || spec.starts_with("clip:") ||
           (spec.starts_with("dgc") && spec.find("clip=1") != std::string::npos);
  });
  return some;
}

INSTANTIATE_TEST_SUITE_P(Systems, Hosts, testing::ValuesIn(in_brief(specs())),
                         [](const auto& parameter) { return test_name(parameter.param); });

TEST(HostGroups, NothingAllocatesAfterTheFirstSteps) {
  std::atomic<std::uint64_t> allocated{0};
  run_in_process(4, [&](Communicator& communicator) {
    Session session("rows=zen,dense=casq", communicator, {.ranks_per_host = 2});
    session.add_bucket(kBuckets[0]);
    session.add_rows("table", kTableRows, kTableWidth);
    const Values input = gradient_of(0, 0, communicator.rank());
    const Rows rows(0, communicator.rank());
    Values gradient(input.size());
    std::uint64_t before = 0;
    for (int step = 0; step < 12; ++step) {
      communicator.barrier();
      if (step == 7 && communicator.rank() == 0) before = allocations_so_far();
      communicator.barrier();
      std::ranges::copy(input, gradient.begin());
      session.synchronize(0, gradient);
      session.synchronize_rows(1, rows.view());
      session.next_step();
    }
    communicator.barrier();
    if (communicator.rank() == 0) allocated = allocations_so_far() - before;
    communicator.barrier();
  });
  EXPECT_EQ(allocated.load(), 0u);
}

TEST(HostGroups, AutoChoosesAndRanksAgree) {
  run_in_process(4, [&](Communicator& communicator) {
    Session session("auto:settle=0:steps=2", communicator, {.ranks_per_host = 2});
    session.add_bucket(kBuckets[0]);
    for (int step = 0; step < 40; ++step) {
      Values gradient = gradient_of(0, step, communicator.rank());
      session.synchronize(0, gradient);
      session.next_step();
      Values first = gradient;
      communicator.broadcast(as_writable_bytes(Span<float>(first)), 0);
      ASSERT_TRUE(same_bits(first, gradient)) << "step " << step;
    }
    EXPECT_FALSE(session.explain().empty());
  });
}

TEST(HostGroups, PartsAreWholeRowsAndDoNotDependOnTheBucket) {
  const BucketLayout layout = {
      {"tall", 3000 * 20, 3000}, {"square", 256 * 256, 256}, {"vector", 40'001}, {"flat", 50'000, 1},
      {"wide", 50 * 1000, 50},   {"bias", 300, 300},         {"none", 0}};
  constexpr std::size_t kPlaces = 4;
  run_in_process(kPlaces, [&](Communicator& communicator) {
    const HostGroups groups(communicator, kPlaces);
    const auto parts = groups.parts(layout);
    std::vector<int> covered(parts.begins.back());
    for (std::size_t place = 0; place < kPlaces; ++place) {
      std::size_t offset = 0;
      for (const VectorChunk& slice : parts.slices[place]) {
        EXPECT_EQ(slice.offset, offset);
        offset += slice.count;
        for (std::size_t i = 0; i < slice.count; ++i) ++covered[slice.begin + i];
      }
      EXPECT_EQ(offset, parts.begins[place + 1] - parts.begins[place]);
    }
    EXPECT_TRUE(std::ranges::all_of(covered, [](int times) { return times == 1; }));
    // Each place has a quarter of what is cut; a square is as wide as tall, and stays whole.
    std::size_t squares = 0;
    for (const Parameter& one : parts.own) {
      if (one.name == "tall") {
        EXPECT_EQ(one, (Parameter{"tall", 750 * 20, 750}));
      } else if (one.name == "wide") {
        EXPECT_EQ(one, (Parameter{"wide", 50 * 250, 50}));
      } else if (one.name == "square") {
        EXPECT_EQ(one, (Parameter{"square", 256 * 256, 256}));
        squares = 1;
      } else if (one.name == "vector") {
        EXPECT_NEAR(static_cast<double>(one.elements), 10'000, 1);
        EXPECT_EQ(one.rows, 0u);
      } else if (one.name == "flat") {
        EXPECT_EQ(one, (Parameter{"flat", 12'500, 0}));
      }
    }
    std::vector<std::size_t> counts(kPlaces);
    communicator.all_gather(as_bytes(Span<const std::size_t>(&squares, 1)),
                            as_writable_bytes(Span<std::size_t>(counts)));
    EXPECT_EQ(std::ranges::count(counts, std::size_t{1}), 1);
    // In a bucket of its own each parameter has the same piece.
    for (const Parameter& whole : layout) {
      const auto alone = groups.parts({whole}).own;
      const auto found = std::ranges::find(parts.own, whole.name, &Parameter::name);
      EXPECT_EQ(alone.empty(), found == parts.own.end());
      if (!alone.empty() && found != parts.own.end()) {
        EXPECT_EQ(alone[0], *found);
      }
    }
  });
}

/// Non-zeros of what a rank at each place of two gets of its own vector, whose values are of another size.
std::array<std::size_t, 2> delivered_by_place(const std::string& spec, bool with_shards) {
  constexpr std::size_t kElements = 9000;
  std::array<std::atomic<std::size_t>, 2> delivered{};
  run_in_process(4, [&](Communicator& communicator) {
    // Ranks 0 and 1 hold a layer's shards, and 2 and 3 a replica of it.
    const int rank = communicator.rank();
    const int place = rank % 2;
    GroupCommunicator shards(communicator, {rank - place, rank - place + 1},
                             GroupCommunicator::Lanes::at_once);
    GroupCommunicator replicas(communicator, {place, place + 2}, GroupCommunicator::Lanes::at_once);
    Session session(spec, replicas, {.shards = with_shards ? &shards : nullptr});
    session.add_bucket({{"layer", kElements}});
    for (int step = 0; step < 3; ++step) {
      Values gradient = normal_values(kElements, static_cast<std::uint32_t>(7 * step + rank));
      for (float& value : gradient) value *= place == 0 ? 100.0f : 1.0f;
      session.synchronize(0, gradient);
      session.next_step();
      if (rank < 2) {
        delivered[static_cast<std::size_t>(place)] +=
            static_cast<std::size_t>(std::ranges::count_if(gradient, [](float x) { return x != 0; }));
      }
    }
  });
  return {delivered[0], delivered[1]};
}

TEST(Shards, OfALayerAreSelectedByOneThreshold) {
  const std::string spec = "dgc:ratio=0.05:momentum=0:threshold=";
  // A twentieth of each, of two ranks which choose apart.
  const auto own = delivered_by_place(spec + "own", true);
  EXPECT_NEAR(static_cast<double>(own[0]), 3 * 0.0975 * 9000, 400);
  EXPECT_NEAR(static_cast<double>(own[1]), 3 * 0.0975 * 9000, 400);
  // A tenth of the large ones, as many as a twentieth of all.
  const auto together = delivered_by_place(spec + "shards", true);
  EXPECT_NEAR(static_cast<double>(together[0]), 3 * 0.19 * 9000, 600);
  EXPECT_LT(together[1], 20u);
  EXPECT_EQ(delivered_by_place(spec + "shards", false), own) << "without shards it is each rank's own";
}

TEST(HostGroups, PartsAreSelectedByOneThreshold) {
  // Square, so that each lies at one place.
  const BucketLayout layout = {{"first", 128 * 128, 128},
                               {"second", 128 * 128, 128},
                               {"w", 128 * 128, 128},
                               {"third", 128 * 128, 128},
                               {"vector", 30'000}};
  for (const bool by_shards : {false, true}) {
    std::size_t least = layout.size() * 128 * 128;
    std::size_t most = 0;
    std::size_t all = 0;
    run_in_process(4, [&](Communicator& communicator) {
      const std::string spec = "dgc:ratio=0.05:momentum=0:threshold=";
      Session session(spec + (by_shards ? "shards" : "own"), communicator, {.ranks_per_host = 2});
      session.add_bucket(layout);
      Values gradient = normal_values(elements_of(layout), static_cast<std::uint32_t>(communicator.rank()));
      // Large where place 0 has it.
      const HostGroups groups(communicator, 2);
      const auto parts = groups.parts(layout);
      for (const VectorChunk& slice : parts.slices[0]) {
        for (std::size_t i = 0; i < slice.count; ++i) gradient[slice.begin + i] *= 100;
      }
      session.synchronize(0, gradient);
      if (communicator.rank() != 0) return;
      for (std::size_t place = 0; place < 2; ++place) {
        std::size_t here = 0;
        for (const VectorChunk& slice : parts.slices[place]) {
          here += static_cast<std::size_t>(
              std::count_if(gradient.begin() + static_cast<std::ptrdiff_t>(slice.begin),
                            gradient.begin() + static_cast<std::ptrdiff_t>(slice.begin + slice.count),
                            [](float x) { return x != 0; }));
        }
        least = std::min(least, here);
        most = std::max(most, here);
        all += here;
      }
    });
    EXPECT_GT(most, 0u);
    EXPECT_EQ(least < 20, by_shards) << least << " and " << most;
    EXPECT_NEAR(static_cast<double>(all) / static_cast<double>(elements_of(layout)), 0.0975, 0.02);
  }
}

std::string refusal(const std::string& spec, SessionOptions options) {
  std::string text;
  run_in_process(4, [&](Communicator& communicator) {
    try {
      Session session(spec, communicator, options);
    } catch (const std::invalid_argument& error) {
      if (communicator.rank() == 0) text = error.what();
    }
  });
  return text;
}

TEST(HostGroups, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_NE(refusal("dense", {.ranks_per_host = 3}).find("ranks_per_host=3: it must divide the 4 ranks"),
            std::string::npos);
  EXPECT_NE(refusal("dense", {.ranks_per_host = 0}).find("ranks_per_host=0"), std::string::npos);
  EXPECT_NE(refusal("half", {.reduce_scatter = true, .ranks_per_host = 2}).find("reduce_scatter"),
            std::string::npos);
  EXPECT_NE(refusal("clip:norm=1+casq", {.ranks_per_host = 2}).find("whole gradient"), std::string::npos);
  EXPECT_NE(refusal("dgc:clip=1", {.ranks_per_host = 2}).find("whole gradient"), std::string::npos);
  EXPECT_EQ(refusal("dgc:clip=0", {.ranks_per_host = 2}), "");
  EXPECT_EQ(refusal("casq", {.ranks_per_host = 2}), "");
}

TEST(HostGroups, AStateOfOtherPartsIsRefused) {
  run_in_process(4, [&](Communicator& communicator) {
    Session whole("casq", communicator, {});
    whole.add_bucket(kBuckets[0]);
    Session parts("casq", communicator, {.ranks_per_host = 2});
    parts.add_bucket(kBuckets[0]);
    const auto refused = [](Session& to, const Session& from) {
      StateWriter writer;
      from.save(writer);
      try {
        to.load(StateReader(std::move(writer)));
      } catch (const std::runtime_error& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    EXPECT_NE(refused(parts, whole).find("saved with ranks_per_host=1, this one has ranks_per_host=2"),
              std::string::npos);
    EXPECT_NE(refused(whole, parts).find("saved with ranks_per_host=2"), std::string::npos);
    EXPECT_EQ(refused(parts, parts), "");
  });
}

TEST(HostGroups, RanksThatDifferAreToldSoAllOfThem) {
  std::atomic<int> refused = 0;
  run_in_process(4, [&](Communicator& communicator) {
    Session session("dense", communicator, {.ranks_per_host = 2});
    session.add_bucket({{"weight", communicator.rank() == 3 ? 90u : 100u}});
    try {
      session.start();
    } catch (const std::runtime_error& error) {
      const std::string text = error.what();
      if (text.find("rank 3 differs") != std::string::npos &&
          text.find("bucket sizes") != std::string::npos) {
        ++refused;
      }
    }
  });
  EXPECT_EQ(refused, 4);
}

TEST(HostGroups, RanksThatCallOtherBucketsAreNamedByAll) {
  std::atomic<int> refused = 0;
  run_in_process(4, [&](Communicator& communicator) {
    Session session("dense", communicator, {.ranks_per_host = 2});
    for (const BucketLayout& layout : {kBuckets[0], BucketLayout{{"other", 100}}}) session.add_bucket(layout);
    session.start();
    Values first(elements_of(kBuckets[0]));
    Values second(100);
    try {
      if (communicator.rank() == 3) {
        session.synchronize(1, second);
      } else {
        session.synchronize(0, first);
      }
    } catch (const CommError& error) {
      if (std::string(error.what()).find("rank 3 synchronizes bucket 1") != std::string::npos) ++refused;
    }
  });
  EXPECT_EQ(refused, 4);
}

TEST(HostGroups, ARefusedRateEndsTheStepOnAllRanksAlike) {
  // A bucket that lies at one place as a whole: the other one has nothing to refuse.
  run_in_process(4, [&](Communicator& communicator) {
    Session session("sketched_sgd:ratio=0.1", communicator, {.ranks_per_host = 2});
    session.add_bucket({{"small", 300}});
    Values gradient(300, 1.0f);
    session.synchronize(0, gradient);
    EXPECT_TRUE(session.next_step());
    session.set_learning_rate(-1);
    try {
      session.synchronize(0, gradient);
      EXPECT_FALSE(session.finite());
    } catch (const std::invalid_argument&) {
    }
    EXPECT_FALSE(session.next_step());
    session.set_learning_rate(0.1);
    std::ranges::fill(gradient, 1.0f);
    session.synchronize(0, gradient);
    EXPECT_TRUE(session.next_step());
  });
}

TEST(HostGroups, AMessageWithinAHostThatIsDamagedIsRefused) {
  // One message after the other of what rank 1 gets of the dense bucket and of the table.
  std::size_t refused = 0;
  for (std::size_t message = 0;; ++message) {
    std::atomic<bool> damaged = false;
    std::string error;
    std::mutex mutex;
    const auto rank = [&](Communicator& plain) {
      std::size_t seen = 0;
      bool armed = false;
      TappedCommunicator communicator(plain, [&](const MessagePlace& place, Span<std::byte> bytes) {
        const bool within = place.peer == 0 && plain.rank() == 1 && place.tag != kStampTag;
        if (!armed || !within || bytes.empty() || seen++ != message) return;
        bytes[bytes.size() / 2] ^= std::byte{0x10};
        damaged = true;
      });
      Session session("rows=zen,dense=half", communicator, {.ranks_per_host = 2});
      session.add_bucket(kBuckets[0]);
      session.add_rows("table", kTableRows, kTableWidth);
      session.start();
      armed = true;
      Values gradient = gradient_of(0, 0, communicator.rank());
      const Rows rows(0, communicator.rank());
      try {
        session.synchronize(0, gradient);
        session.synchronize_rows(1, rows.view());
      } catch (const CorruptFrame& caught) {
        const std::lock_guard lock(mutex);
        if (plain.rank() == 1) error = caught.what();
        throw;
      }
    };
    try {
      run_in_process(2, rank);
    } catch (const std::exception&) {
      // The rank that is not the victim loses its peer.
    }
    if (!damaged) break;
    EXPECT_NE(error.find("bytes changed on the way"), std::string::npos)
        << "message " << message << ": " << error;
    ++refused;
  }
  EXPECT_GE(refused, 8u);
}

}  // namespace
}  // namespace thinwire::host_groups_test
