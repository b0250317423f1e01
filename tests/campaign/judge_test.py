"""What the campaign counts as the right name, on ends that are made up."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import trainer
from judge import Verdict, outcome, sums_by_engine
from keeper import Phase, RankEnd
from plan import WEIGHTS, draw_plan, refuses_scaler

PORTS = {4000: 0, 4001: 1, 4002: 2}


def verdict_on(texts, fault, kind="gloo", at_step=5, flipped_port=0, ports_before=(), victim=0):
    """violations and `named` where ranks have said these texts."""
    plan = draw_plan(1, 1, 3.0, [kind], [fault])
    plan.world, plan.victim, plan.at_step, plan.place = len(texts), victim, at_step, "step"
    ends = [RankEnd(status=1, text=text) for text in texts]
    ends[victim].flipped_port = flipped_port
    verdict = Verdict(plan, Phase(ends, struck=True, ports=PORTS, ports_before=set(ports_before)))
    verdict.ends()
    return verdict.violations, verdict.named


def lost(rank, other):
    return f"rank {rank}: rank {other} is gone or silent (connection lost: Connection closed by peer)\n"


def refused(rank, sender):
    return (f"rank {rank}: frame refused: its checksum (rank {sender}, bucket 0, step 5): "
            "bytes changed on the way\n")


# The receiver is hit. It names the sender, and the others name either.
assert verdict_on([refused(0, 2), lost(1, 0), lost(2, 0)], "flip", flipped_port=4002) == ([], True)
assert verdict_on([refused(0, 2), lost(1, 2), lost(2, 0)], "flip", flipped_port=4002) == ([], True)
for texts in ([refused(0, 1), lost(1, 0), lost(2, 0)],  # another rank than the sender
              [refused(0, 0), lost(1, 0), lost(2, 0)],  # itself
              [refused(0, 2), lost(1, 0), lost(2, 1)]):  # neither end
    violations, named = verdict_on(texts, "flip", flipped_port=4002)
    assert len(violations) == 1 and violations[0].startswith("wrong rank named"), violations
violations, named = verdict_on([f"rank {rank}: something is wrong\n" for rank in range(3)], "flip",
                               flipped_port=4002)
assert not named and violations[0].startswith("nobody named after a flipped bit"), violations
# DDP's own group checks nothing and names nobody; ours does in every step.
own = "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:1\n"
assert verdict_on([own, own, own], "flip", "ddp", 1, 4002, [4002]) == ([], None)
violations, named = verdict_on(["", own, lost(2, 0)], "kill", "ddp", 1)
assert named is False and violations[0].startswith("nobody named by rank 1"), violations
behind = "thinwire: rank 1: rank {} is gone or silent (the connection to it is closed)\n"
assert verdict_on(["", own + behind.format(0), lost(2, 0)], "kill", "ddp", 1) == ([], True)
for texts in (["", own + behind.format(2), lost(2, 0)], ["", own + behind.format(0), lost(2, 1)]):
    violations, named = verdict_on(texts, "kill", "ddp", 1)
    assert len(violations) == 1 and violations[0].startswith("wrong rank named"), violations

# Under MPI one text has what all ranks have said.
def verdict_under_mpi(text, fault):
    return verdict_on([text, "", ""], fault, "mpi", victim=2)


aborted = "mpirun detected that one or more processes exited with non-zero status\n"
assert verdict_under_mpi(refused(2, 1) + aborted, "flip") == ([], True)
assert verdict_under_mpi(refused(2, 1) + lost(0, 2) + lost(1, 2) + aborted, "flip") == ([], True)
assert verdict_under_mpi("rank 0: " + lost(0, 2) + "rank 1: " + lost(1, 2) + aborted, "stop") == ([], True)
for text, fault in ((refused(2, 2), "flip"), (refused(2, 1) + lost(0, 0), "flip"),
                    ("rank 0: " + lost(0, 2) + "rank 1: " + lost(1, 0), "stop")):
    violations, named = verdict_under_mpi(text + aborted, fault)
    assert len(violations) == 1 and violations[0].startswith("wrong rank named"), violations
violations, named = verdict_under_mpi("rank 2: something is wrong\n" + aborted, "flip")
assert not named and violations[0].startswith("nobody named after a flipped bit"), violations

# An mpirun that outlives its ranks is no hang of theirs, and its own crash none of theirs. What ranks have
# said, and a rank that did not go on, count all the same.
fault = "[vm:07096] Signal: Segmentation fault (11)\n"
for fault_of_run, text, pid, final, how, violation in (
        ("kill", "", 5, False, {"hung": [0, 1, 2]}, "hang"),
        ("kill", "", 5, False, {"launcher_stayed": True}, None),
        ("kill", fault, 5, False, {}, None),
        ("kill", fault, 7096, False, {}, "crash"),
        ("stop", "rank 0: " + lost(0, 2) + "rank 1: " + lost(1, 0), 5, False, {"launcher_stayed": True},
         "wrong rank named"),
        ("pause", "", 5, True, {"launcher_stayed": True}, None),
        ("pause", "", 5, False, {"launcher_stayed": True}, "did not go on")):
    plan = draw_plan(1, 1, 3.0, ["mpi"], [fault_of_run])
    plan.world, plan.victim = 3, 2
    phase = Phase([RankEnd(pid=pid, text=one, final=final, status=None if how else 1)
                   for one in (text, "", "")], struck=True, **how)
    verdict = Verdict(plan, phase)
    verdict.ends()
    verdict.went_on()
    found = [one.split(":")[0] for one in verdict.violations]
    assert any(one.startswith(violation) for one in found) if violation else not found, (violation, found)
    assert ("mpirun failed" in outcome(plan, phase, verdict, {"broken": None, "resumed": None})) == (
        bool(how) and "hung" not in how or pid != 7096 and text == fault)
    its_folder, other = "files: /tmp/run-1/tmp/ompi.vm.0", "files: /tmp/run-1/tmp/state"
    assert verdict.left_behind([its_folder, other]) == [
        f"left behind: {what}" for what in ([other] if verdict.launcher_failed() else [its_folder, other])]

# What a thread of torch's store client throws is no crash of ours, in the one place where it can.
reset = ("terminate called after throwing an instance of 'std::system_error'\n  what():  "
         "Connection reset by peer\n")
for place, ends in (("register", []), ("step", ["crash"])):
    plan = draw_plan(1, 1, 3.0, ["ddp"], ["kill"])
    plan.world, plan.victim, plan.place, plan.at_step = 3, 0, place, 5
    verdict = Verdict(plan, Phase([RankEnd(status=-9), RankEnd(status=-6, text=reset),
                                   RankEnd(status=1, text=lost(2, 0))], struck=True))
    verdict.ends()
    assert [one.split(":")[0]
            for one in verdict.violations if one.startswith("crash")] == ends, verdict.violations

# What Gloo sums has no checksum of ours.
plan = draw_plan(1, 1, 3.0, ["gloo"], ["flip"])
plan.set_spec = None
for spec, sums in (("ef_signsgd", False), ("whole:below=300:names=*+qsgd", True),
                   ("warm_up:steps=2+qsgd", True), ("one_bit_adam:freeze=2", True),
                   ("zero_one_adam:kappa=1", True), ("marsit:full_every=0", True)):
    plan.spec = spec
    assert sums_by_engine(plan) == sums, spec

# A residual that one of two runs has not measured is not compared; one that both have is.
known, unknown = {"model_hash": "1", "residual_norm": 2.0}, {"model_hash": "1", "residual_norm": None}
assert trainer.is_same(known, unknown) and trainer.is_same(unknown, known) and trainer.is_same(known, known)
assert (not trainer.is_same(known, {**known, "residual_norm": 3.0})
        and not trainer.is_same(known, {**unknown, "model_hash": "2"}))

# Plans that register refuses are not drawn.
plans = [draw_plan(1, number, 3.0, ["ddp"], ["overflow"]) for number in range(2000)]
assert not any(refuses_scaler(spec) for plan in plans for spec in (plan.spec, plan.set_spec) if spec)
assert len({plan.spec for plan in plans}) > 50
# The same number gives the same plan, and all faults are drawn.
plans = [draw_plan(1, number, 3.0, ["ddp", "gloo"], list(WEIGHTS)) for number in range(500)]
assert plans == [draw_plan(1, number, 3.0, ["ddp", "gloo"], list(WEIGHTS)) for number in range(500)]
assert {plan.fault for plan in plans} == set(WEIGHTS)
print("ok     the campaign's judge and plans")
