"""What became of a run: one outcome, and every promise that was broken.

The promises: nobody hangs, nobody is silent, a rank that is gone is named and no other is, no crash, states
after an error are those of a whole step, no gradient is lost or doubled over all of the job's lives, what was
resumed equals what was never disturbed, and nothing stays behind.
"""
import array
import os
import re
from typing import Any, Callable, Dict, List, Optional

import trainer
from keeper import HANG, Phase, RankEnd
from plan import SURVIVED, Plan

#: Faults after which survivors have a rank to name.
NAMED = {"kill", "stop", "away", "cut", "exception", "memory", "disk"}
#: Share of the largest gradient.
ROUNDING = 1e-5


def error_of(text: str, rank: int) -> str:
    """The last error in what a rank wrote, without what says who speaks."""
    begins = r"^(?:[\w.]*(?:Error|Exception|Interrupt)\b.*?:|rank \d+: |(?:session_rank|thinwire): )"
    found = [match.start() for match in re.finditer(begins, text, re.MULTILINE)]
    last = text[found[-1]:] if found else text[-400:]
    return re.sub(rf"^(?:[\w.]+: )*(?:rank {rank}: )*", "", last.strip())[:600]


def named_in(message: str) -> List[int]:
    """Ranks that a message blames: those of its first mention."""
    first = re.search(r"\b(?:ranks? |missing: )(\d+(?:(?:, | and )\d+)*)", message)
    return [int(number) for number in re.findall(r"\d+", first[1])] if first else []


class Verdict:
    def __init__(self, plan: Plan, phase: Phase):
        self.plan, self.phase = plan, phase
        self.violations: List[str] = []
        self.named: Optional[bool] = None  # whether somebody named the culprit, where there is one

    def ends(self) -> None:
        """Hangs, silent ends, crashes, and names, of the phase with the fault."""
        plan, phase = self.plan, self.phase
        if phase.hung:
            self.violations.append(f"hang: ranks {phase.hung} were there {HANG:.0f} s after the deadline")
        if plan.kind == "mpi":
            return self._ends_of_mpi()
        failed = [rank for rank, one in enumerate(phase.ranks) if not (one.status == 0 and one.final)
                  and rank not in phase.hung]
        failed = [rank for rank in failed if not self._is_of_store(phase.ranks[rank])]
        for rank in failed:
            if rank == plan.victim and plan.fault in ("kill", "stop") and phase.struck:
                continue
            self._end_of(rank, phase.ranks[rank])
        survivors = [rank for rank in failed if rank != plan.victim]
        if phase.struck and survivors and plan.fault in NAMED:
            self._names(survivors)
        elif failed and plan.fault == "flip":
            self._names_of_a_flip(failed)

    def _end_of(self, rank: int, end: RankEnd) -> None:
        if end.status == 0:
            self.violations.append(f"silent end: rank {rank} has status 0 and no result")
        elif end.status is not None and end.status < 0:
            if not (self.plan.fault == "memory" and rank == self.plan.victim
                    and re.search("bad_alloc|memory|Memory", end.text)):
                self.violations.append(f"crash: rank {rank} by signal {-end.status}: {end.text[-300:]}")
        elif not end.text.strip():
            self.violations.append(f"silent end: rank {rank} has status {end.status} and said nothing")

    def _names(self, survivors: List[int]) -> None:
        victim = self.plan.victim
        said = {rank: error_of(self.phase.ranks[rank].text, rank) for rank in survivors}
        named = {rank: named_in(said[rank]) for rank in survivors}
        for rank in survivors:
            if named[rank] and named[rank] != [victim]:
                self.violations.append(f"wrong rank named by rank {rank}, it was {victim}: "
                                       f"{said[rank][:300]}")
        unnamed = [rank for rank in survivors if not named[rank]]
        if unnamed:
            self.violations.append(f"nobody named by rank {unnamed[0]}: {said[unnamed[0]][:300]}")
        self.named = False if unnamed else True if any(named.values()) else None

    def _is_of_store(self, end: RankEnd) -> bool:
        """The end of a thread of torch's own: each client of its TCPStore has one, which nothing can catch
        for. It throws where rank 0 dies before it has accepted the client's connection."""
        thrown = (r"terminate called after throwing an instance of 'std::system_error'\s+what\(\):  "
                  r"Connection reset")
        opening = self.plan.kind == "ddp" and self.plan.victim == 0 and self.plan.place == "register"
        return opening and self.phase.struck and end.status == -6 and re.search(thrown, end.text) is not None

    def hit_ddp(self) -> bool:
        """Whether a bit was turned over in what DDP sends by its own group, which checks nothing."""
        return any(one.flipped_port in self.phase.ports_before
                   for one in self.phase.ranks if one.flipped_port)

    def _names_of_a_flip(self, failed: List[int]) -> None:
        """The receiver, which is hit, names the sender; the others name the sender,
        or the receiver, which ends."""
        if self.hit_ddp():
            return
        victim = self.plan.victim
        said = {rank: error_of(self.phase.ranks[rank].text, rank) for rank in failed}
        named = {rank: named_in(text) for rank, text in said.items()}
        sender = self.phase.ports.get(self.phase.ranks[victim].flipped_port)
        for rank in failed:
            right = [[one] for one in range(self.plan.world) if one != rank
                     and (sender is None or one in (sender, victim))]
            if named[rank] and named[rank] not in right:
                self.violations.append(f"wrong rank named by rank {rank} after a flipped bit from rank "
                                       f"{sender}: {said[rank][:300]}")
        self.named = any(named.values())
        if not self.named:
            self.violations.append(f"nobody named after a flipped bit: {said[failed[0]][:300]}")

    def _ends_of_mpi(self) -> None:
        """mpirun ends the others when a rank ends badly, and speaks for them."""
        end, plan = self.phase.ranks[0], self.plan
        finals = all(one.final for one in self.phase.ranks)
        if self.phase.hung or (end.status == 0 and finals):
            return
        launcher_failed = self.launcher_failed()
        if end.status == 0:
            self.violations.append("silent end: mpirun has status 0 and ranks have no result")
        crashed = "Signal: Segmentation fault" in end.text and not self._launcher_crashed()
        if crashed or "signal 6" in end.text and plan.fault != "memory":
            self.violations.append(f"crash: {end.text[-300:]}")
        if self.phase.struck and (plan.fault in NAMED or plan.fault == "flip"):
            self._names_under_mpi()
        # Nobody was left to name a rank that is stopped as the last one. Nor can an mpirun that has failed.
        if not self.phase.struck or plan.fault not in NAMED or self.phase.alone or launcher_failed:
            return
        pattern = (rf"rank {plan.victim} (?:is gone|with PID)|^rank {plan.victim}: "
                   rf"|\[\[\d+,1\],{plan.victim}\]")
        self.named = re.search(pattern, end.text, re.MULTILINE) is not None
        # Inside of MPI_Finalize ranks cannot ask each other any more.
        if not self.named and "the end of MPI is not reached" not in end.text:
            self.violations.append(f"nobody named: {end.text[-300:]}")

    def _launcher_crashed(self) -> bool:
        """mpirun itself, and no rank: each prints its process's number."""
        crashed = re.findall(r"\[[^][:]+:0*(\d+)\] Signal: Segmentation fault", self.phase.ranks[0].text)
        ranks = [str(one.pid) for one in self.phase.ranks]
        return bool(crashed) and not any(pid in ranks for pid in crashed)

    def launcher_failed(self) -> bool:
        return self.plan.kind == "mpi" and (self.phase.launcher_stayed or self._launcher_crashed())

    def left_behind(self, leaked: List[str]) -> List[str]:
        """An mpirun that crashes, or is killed, leaves the folder that it has made in TMPDIR."""
        its_own = "/ompi." if self.launcher_failed() else None
        return [f"left behind: {what}" for what in leaked
                if its_own is None or not (what.startswith("files: ") and its_own in what)]

    def _names_under_mpi(self) -> None:
        """Of what ranks have said through mpirun. In a flip the victim is the receiver, and the sender is
        whom it names: nothing else knows."""
        victim, text = self.plan.victim, self.phase.ranks[0].text
        lines = re.findall(r"^rank (\d+): (?:rank \1: )?(.*)$", text, re.MULTILINE)
        said = [(int(rank), named_in(message)) for rank, message in lines]
        flip = self.plan.fault == "flip"
        right = [[victim]] + [named for rank, named in said if flip and rank == victim]
        for rank, named in said:
            wrong = named == [rank] or named not in right
            if named and wrong and (rank != victim or flip):
                self.violations.append(f"wrong rank named by rank {rank}, the victim was {victim}: "
                                       f"{text[:300]}")
        if flip:
            self.named = any(named for _, named in said)
            if not self.named:
                self.violations.append(f"nobody named after a flipped bit: {text[:300]}")

    def states(self) -> None:
        """What survivors could have saved after the error."""
        for rank, end in enumerate(self.phase.ranks):
            if end.uninspected and self.plan.fault not in ("disk", "memory"):
                self.violations.append(f"rank {rank} could not look at its state after the error: "
                                       f"{end.uninspected}")
            if end.inspected and not end.inspected.get("refused") and not end.inspected["whole"]:
                self.violations.append(f"torn state: rank {rank} after the error: {end.inspected}")

    def went_on(self) -> None:
        came_through = self.launcher_failed() and all(one.final for one in self.phase.ranks)
        if (self.plan.fault in SURVIVED and self.phase.struck and not self.phase.ended_well()
            and not self.phase.hung and not came_through):
            rank, end = next((rank, one) for rank, one in enumerate(self.phase.ranks) if one.status != 0
                             or not one.final)
            self.violations.append(f"did not go on: rank {rank}: {error_of(end.text, rank)[:300]}")


def finals(folder: str, world: int) -> List[List[array.array]]:
    """Of each rank: what it gave, what was applied, what is left."""
    result = []
    for rank in range(world):
        values = array.array("d")
        path = f"{folder}/final-{rank}"
        with open(path, "rb") as file:
            values.fromfile(file, os.path.getsize(path) // 8)
        part = len(values) // 3
        result.append([values[i * part:(i + 1) * part] for i in range(3)])
    return result


def imbalance(ranks: List[List[array.array]]) -> float:
    """max |sum of given - W * applied - sum of left| over the largest |sum of given|."""
    world = len(ranks)
    worst, largest = 0.0, 1e-30
    for given, applied, left in zip(zip(*(one[0] for one in ranks)), ranks[0][1],
                                    zip(*(one[2] for one in ranks))):
        gap = abs(sum(given) - world * applied - sum(left))
        worst = gap if not gap <= worst else worst  # also NaN
        largest = max(largest, abs(sum(given)))
    return worst / largest


def compare(mine: str, reference: Callable[[int], str], plan: Plan, bit_for_bit: bool) -> List[str]:
    """Violations of the result in folder `mine`. reference(n): the folder of the n-th undisturbed run."""
    if plan.kind == "train":
        return compare_training(mine, reference)
    ranks = finals(mine, plan.world)
    found = []
    if any(one[1] != ranks[0][1] for one in ranks):
        found.append("ranks differ in what they applied")
    undisturbed = finals(reference(0), plan.world)
    lost, allowed = imbalance(ranks), imbalance(undisturbed)
    # A system that keeps all it does not deliver loses only rounding;
    # one that drops things by design is not judged.
    if allowed < ROUNDING and not lost < 10 * ROUNDING:
        found.append(f"lost or doubled gradient: imbalance {lost:.3g}, undisturbed {allowed:.3g}")
    if bit_for_bit and [one[1:] for one in ranks] != [one[1:] for one in undisturbed]:
        again = finals(reference(1), plan.world)
        if [one[1:] for one in again] == [one[1:] for one in undisturbed]:
            found.append("the result differs from that of the undisturbed run")
    return found


#: Systems and stages of which some part is a sum: what auto tries, buckets that guard gives to dense,
#: warm_up's first steps unless `with` says otherwise, the variance of the Adams, the parameters that whole
#: sends, marsit's full steps and step sizes.
SUMMED = (r"\b(?:auto|guard|dense|whole|warm_up|one_bit_adam|zero_one_adam|power_sgd|acp_sgd"
          r"|sketched_sgd|global_top_k|s2_reducer|marsit)\b")


def sums_by_engine(plan: Plan) -> bool:
    """Whether Gloo itself sums what the plan's systems send:
    nothing but TCP's checksum guards that (docs/wire_formats.md)."""
    unchecked = plan.kind != "mpi" and not plan.checked
    return unchecked and any(re.search(SUMMED, spec) for spec in (plan.spec, plan.set_spec) if spec)


def compare_training(mine: str, reference: Callable[[int], str]) -> List[str]:
    """The same of `thinwire train`, which compares its ranks itself."""
    result, undisturbed = trainer.result_of(mine), trainer.result_of(reference(0))
    if (trainer.is_same(result, undisturbed)
        or not trainer.is_same(trainer.result_of(reference(1)), undisturbed)):
        return []
    return [f"the result differs from that of the undisturbed run: {result}, {undisturbed}"]


def judge(plan: Plan, result: Dict[str, Any], folder: str, reference: Callable[[int], str]) -> Dict[str, Any]:
    """One line of the campaign's record."""
    phase: Phase = result["struck"]
    verdict = Verdict(plan, phase)
    violations = verdict.violations
    if result["broken"]:
        violations.append(result["broken"])
    verdict.ends()
    verdict.states()
    verdict.went_on()
    last, damaged = phase, False
    if result["resumed"] is not None:
        last = result["resumed"]
        if not last.ended_well():
            rank = next((rank for rank, one in enumerate(last.ranks) if one.status != 0), 0)
            violations.append(f"resuming from step {result['from']} failed: rank {rank}: "
                              f"{error_of(last.ranks[rank].text, rank)[:300]}")
    if last.ended_well():
        # DDP makes its buckets anew after a process's first step, which a state of that step cannot know.
        loaded = result["from"] if result["resumed"] else plan.at_step if plan.place == "load" else None
        # auto goes by times, of which no two runs have the same.
        by_times = any(re.search(r"\bauto\b", spec) for spec in (plan.spec, plan.set_spec) if spec)
        exact = plan.fault != "overflow" and not by_times and not (plan.kind == "ddp" and loaded == 1)
        found = compare(folder, reference, plan, exact)
        flipped = any(one.flipped_port for one in phase.ranks)
        damaged = bool(found) and flipped and (sums_by_engine(plan) or verdict.hit_ddp())
        if not damaged:
            violations += found
    for one in (phase, result["resumed"]):
        violations += verdict.left_behind(one.leaked if one else [])
    after = max((one.after for one in phase.ranks if one.after is not None), default=None)
    return {
        **{key: value for key, value in plan.words().items() if key != "seed"},
        "outcome": "went on, sum damaged" if damaged else outcome(plan, phase, verdict, result),
        "resumed_from": result["from"],
        "seconds_after": after and round(after, 2),
        "seconds": round(phase.seconds + (result["resumed"].seconds if result["resumed"] else 0.0), 2),
        "violations": violations,
    }


def outcome(plan: Plan, phase: Phase, verdict: Verdict, result: Dict[str, Any]) -> str:
    if result["broken"] or not phase.struck:
        return "not struck"
    if phase.hung:
        return "hang"
    if phase.ended_well():
        return "went on"
    how = {True: "named", False: "not named", None: "no culprit"}[verdict.named]
    if verdict.launcher_failed():
        how = "mpirun failed"
    return (f"ended, {how}, resumed" if result["resumed"] and result["resumed"].ended_well()
            else f"ended, {how}, not resumed")
