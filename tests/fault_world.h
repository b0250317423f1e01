#pragma once
// The fault boards of all ranks of a job, over a store in memory.

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/fault_board.h"
#include "tests/memory_store.h"

namespace thinwire::testing {

// Long enough that a busy machine schedules every thread within a third of it, short enough to wait for.
inline constexpr FaultBoard::Seconds kGrace{0.6};

struct World {
  explicit World(int ranks, int store_host = 0) {
    for (int rank = 0; rank < ranks; ++rank) {
      boards.push_back(std::make_unique<FaultBoard>(
          store, FaultBoard::Options{.rank = rank, .size = ranks, .store_host = store_host}));
      boards.back()->set_grace(kGrace);
    }
  }
  /// Its board has gone with its process: it says nothing.
  void is_dead(int rank) {
    boards[static_cast<std::size_t>(rank)].reset();
    store->set("thinwire/fault/note/" + std::to_string(rank), "");
  }
  std::future<Verdict> fails(int rank, std::vector<int> awaited,
                             FaultBoard::Seconds after = FaultBoard::Seconds(0)) {
    return std::async(std::launch::async, [this, rank, awaited = std::move(awaited), after] {
      std::this_thread::sleep_for(after);
      auto& board = *boards[static_cast<std::size_t>(rank)];
      board.report(awaited, kGrace);
      return board.judge();
    });
  }
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<FaultBoard>> boards;
};

}  // namespace thinwire::testing
