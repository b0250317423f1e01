"""What the campaign counts as the right name, on ends that are made up."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from judge import Verdict
from keeper import Phase, RankEnd
from plan import draw_plan

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
    return f"rank {rank}: frame refused: its checksum (rank {sender}, bucket 0, step 5): bytes changed on the way\n"


# The receiver is hit. It names the sender, and the others name either.
assert verdict_on([refused(0, 2), lost(1, 0), lost(2, 0)], "flip", flipped_port=4002) == ([], True)
assert verdict_on([refused(0, 2), lost(1, 2), lost(2, 0)], "flip", flipped_port=4002) == ([], True)
for texts in ([refused(0, 1), lost(1, 0), lost(2, 0)],  # another rank than the sender
              [refused(0, 0), lost(1, 0), lost(2, 0)],  # itself
              [refused(0, 2), lost(1, 0), lost(2, 1)]):  # neither end
    violations, named = verdict_on(texts, "flip", flipped_port=4002)
    assert len(violations) == 1 and violations[0].startswith("wrong rank named"), violations
violations, named = verdict_on([f"rank {rank}: something is wrong\n" for rank in range(3)], "flip", flipped_port=4002)
assert not named and violations[0].startswith("nobody named after a flipped bit"), violations
# DDP's own group checks nothing and names nobody; ours does in every step.
own = "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:1\n"
assert verdict_on([own, own, own], "flip", "ddp", 1, 4002, [4002]) == ([], None)
assert verdict_on(["", own, own], "kill", "ddp", 1) == ([], None)
assert verdict_on(["", own, lost(2, 0)], "kill", "ddp", 1) == ([], True)
violations, named = verdict_on(["", own, lost(2, 0)], "kill", "ddp", 2)
assert named is False and violations[0].startswith("nobody named by rank 1"), violations
violations, named = verdict_on(["", own, lost(2, 1)], "kill", "ddp", 1)
assert violations[0].startswith("wrong rank named by rank 2"), violations
print("ok     the campaign's names")
