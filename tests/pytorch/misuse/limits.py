"""Limits of time, and stores that do not answer."""
import datetime
import json
import time
import types
from unittest import mock

import torch
import torch.distributed as dist

import thinwire
from thinwire import _C, agreement, at_end, group, parting
from common import RANK, WORLD, Net, register, require_error, train, wrap


def a_restart_that_finds_the_store_of_before():
    """What ranks see that a launcher has started again, with the store of the start before."""
    register(wrap(Net))
    counted = dict(agreement._opened)
    agreement._opened.clear()
    words = [f"rank {RANK} finds in the rendezvous store what it wrote before",
             "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
    require_error(RuntimeError, words, lambda: register(wrap(Net)))
    agreement._opened.update(counted)
    again = wrap(Net)
    register(again)
    train(again, 1)


def a_group_waits_longer_than_it_was_opened():
    """Gloo's limit while a group is opened must not be the one on its sums."""
    store = dist.PrefixStore("lengthened", dist.distributed_c10d._get_default_store())
    opened = dist.ProcessGroupGloo(store, RANK, WORLD, timeout=datetime.timedelta(seconds=2))
    group._lengthen(opened)
    if RANK == 0:
        time.sleep(4)  # longer than the limit: what is tested
    ones = torch.ones(3)
    opened.allreduce([ones]).wait(datetime.timedelta(seconds=60))
    assert ones.tolist() == 3 * [WORLD]


def ranks_that_ended_do_not_wait():
    """Rank 0, which an error ends, stays for those that wait in register, not for those that ended too."""
    keys = agreement.Keys(dist.HashStore(), "next")
    assert not agreement._some_wait(keys, 3)
    keys.set("1", json.dumps({"ended": "rank 1 has ended before it called register"}))
    assert not agreement._some_wait(keys, 3)
    keys.set("2", json.dumps({"job": "", "model": "2 parameters"}))
    assert agreement._some_wait(keys, 3)


def a_store_found_silent_is_not_asked_at_the_end():
    """And where it is asked, once: before the others hear of it, where the error is this process's own."""
    error = RuntimeError("an error before register")
    # Whom the engine blames, the ranks of its group, and how often the store is asked. Rank 0 of a group of
    # ranks 1 and 2 is rank 1 of the job. Where rank 0 of the job hears the same, it alone tells; also where
    # the others have given up on it.
    for culprits, ranks, count in (([], [0, 1, 2], 1), ([0], [1, 2], 1), ([0], [0, 1, 2], 1 - RANK),
                                   ([1], [0, 1, 2], 1 - RANK)):
        engine = types.SimpleNamespace(verdict=lambda: (culprits, "it said nothing", False, False),
                                       tell_end=lambda: None, end_with=lambda verdict: None,
                                       fail=lambda text: None)
        told = []
        with mock.patch.object(agreement, "tell_of_error", told.append), \
                mock.patch.object(parting, "error_of_process", lambda: error), \
                mock.patch.object(parting, "unasked", set()), mock.patch.object(at_end, "_told", []):
            parting.tell(error, [parting.Part(engine, ranks)])
            assert told == [error] * (1 if RANK > 0 and not culprits else 0), (culprits, told)
            for _ in range(2):
                at_end.tell_of_error()
            assert told == [error] * count, (culprits, told)


def a_silent_store_of_register_is_not_asked_at_the_end():
    with mock.patch.object(parting, "unasked", set()):
        def fails():
            with agreement.in_words("reach"):
                raise RuntimeError("no answer within 10 s")

        require_error(RuntimeError, ["rank 0, whose process serves it, is gone or silent"], fails)
        assert parting.unasked == {0}


def what_all_ranks_read_in_register_is_not_told_at_the_end():
    """Rank 0 may end at that moment: torch 1.13 aborts a process that opens a client of the store then."""
    refused = require_error(ValueError, ["lanes=1 on rank 0"], lambda: register(wrap(Net), lanes=1 + RANK))
    for error, asks in ((ValueError(refused), False), (ArithmeticError("given up"), True)):
        no_client = RuntimeError("no client here")
        with mock.patch.object(agreement, "store_client", side_effect=no_client) as client:
            agreement.tell_of_error(error)
        assert client.called == asks, error
    # Others may wait for this rank in a registration over all ranks.
    of_a_part = agreement.Agreement.__new__(agreement.Agreement)
    of_a_part._ranks = [0]
    of_a_part._note_conclusion("a conclusion of a part")
    assert "a conclusion of a part" not in agreement._concluded


def a_rank_is_missed_from_register_on():
    """Also one that stops before its boards' first beats."""
    with mock.patch.object(_C, "write_first_note", wraps=_C.write_first_note) as first_note:
        register(wrap(Net), lanes=2)
    assert [call.args[1] for call in first_note.call_args_list] == [RANK, RANK], first_note.call_args_list
    store = first_note.call_args_list[0].args[0]
    assert not _C.missing_keys(store, [f"thinwire/fault/note/{rank}" for rank in range(WORLD)])


def a_step_limit_that_ends_on_one_rank():
    """The others hear why."""
    model = wrap(Net)
    thinwire.register(model, "casq", deadline_seconds=30.0, step_limit_seconds=2)
    train(model, 2)
    if RANK == 0:
        require_error(RuntimeError, ["this step has waited for more than 2 s in all, lately for rank 1"],
                      lambda: train(model, 1, first=2))
        dist.barrier()
        return
    dist.barrier()  # rank 0 has given up
    require_error(RuntimeError, ["on rank 0 this step has waited for more than 2 s in all"],
                  lambda: train(model, 1, first=2))
