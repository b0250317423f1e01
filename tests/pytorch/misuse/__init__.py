"""Scenarios of bad input, ranks that differ, sub-groups, states at a wrong moment, and limits of time."""
from misuse.bad_input import (
    a_group_without_the_cpu, an_extension_for_another_torch, bad_input, copies_are_plain_ddp,
    fully_shard_under_an_older_torch, numbers_in_a_subgroup, subgroups, what_register_leaves_behind,
)
from misuse.hostile import states_of_any_kind, texts_of_register
from misuse.limits import (
    a_group_waits_longer_than_it_was_opened, a_rank_is_missed_from_register_on,
    a_restart_that_finds_the_store_of_before,
    a_silent_store_of_register_is_not_asked_at_the_end, a_step_limit_that_ends_on_one_rank,
    a_store_found_silent_is_not_asked_at_the_end, ranks_that_ended_do_not_wait,
    what_all_ranks_read_in_register_is_not_told_at_the_end,
)
from misuse.ranks_that_differ import (
    a_load_of_different_models_is_found, a_rank_that_does_not_register, a_rank_that_leaves_what_repeats,
    a_system_that_one_rank_sets, equal_models_in_another_order, models_in_another_order,
    ranks_of_another_build, ranks_that_differ, replicas_that_differ,
)
from misuse.states import (
    a_state_that_one_rank_gathers_alone, a_writer_that_fails_ends_no_step, one_rank_cannot_begin_a_step,
    states_of_another_step_or_model, states_within_backward,
)

__all__ = ["MISUSE", "numbers_in_a_subgroup", "replicas_that_differ", "subgroups"]

MISUSE = [bad_input, equal_models_in_another_order, states_within_backward,
          a_writer_that_fails_ends_no_step, one_rank_cannot_begin_a_step,
          states_of_another_step_or_model, a_system_that_one_rank_sets, a_rank_that_leaves_what_repeats,
          an_extension_for_another_torch, models_in_another_order,
          a_restart_that_finds_the_store_of_before, copies_are_plain_ddp, replicas_that_differ,
          a_load_of_different_models_is_found, a_group_waits_longer_than_it_was_opened,
          a_group_without_the_cpu, ranks_that_ended_do_not_wait,
          a_store_found_silent_is_not_asked_at_the_end,
          a_silent_store_of_register_is_not_asked_at_the_end,
          what_all_ranks_read_in_register_is_not_told_at_the_end,
          a_rank_is_missed_from_register_on, what_register_leaves_behind,
          a_state_that_one_rank_gathers_alone, a_step_limit_that_ends_on_one_rank, ranks_that_differ,
          ranks_of_another_build, texts_of_register, states_of_any_kind,
          a_rank_that_does_not_register, fully_shard_under_an_older_torch]
