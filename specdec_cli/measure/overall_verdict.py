"""What a comparison says of all its variants together: their order, and whether the best of them pays."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specdec_cli.decoding.statistics import Difference, Interval
from specdec_cli.measure.summaries import Summary

Pays = Literal["yes", "no", "inconclusive", "too few prompts", "nothing drafted", "wrong", "not measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverallVerdict:
    """Does drafting pay?

    arm: the best variant that drafts, None if none was measured; speedup: its own; lossy: whether it is. winner: the
    variant to use, which may be the target alone; None if the measurements do not decide. ranking: all variants, the
    fastest first.
    """

    pays: Pays
    arm: str | None = None
    speedup: Interval | None = None
    winner: str | None = None
    lossy: bool = False
    ranking: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The verdict in one line, as a headline."""
        if self.pays == "wrong":
            return "Wrong: answers are not the target's own"
        if self.pays == "nothing drafted":
            return "No: nothing was drafted"
        if self.speedup is None:
            return "Not measured: no answer was long enough"
        text = f"{self.pays.capitalize()}: {self.speedup}"
        if self.pays == "too few prompts":
            return text + (" over 1 prompt" if self.speedup.count == 1 else f" over {self.speedup.count} prompts")
        return text + (" at best" if self.pays == "no" and len(self.ranking) > 2 else "")

    @property
    def sentence(self) -> str:
        """What the headline is about."""
        several = len(self.ranking) > 2
        no = (
            f"No way measured is faster than the target alone; {self.arm} comes closest."
            if several
            else f"{self.arm} is not faster than the target alone."
        )
        return {
            "yes": f"{self.arm} is faster than the target alone{', and the fastest way measured' if several else ''}."
            + (" It is LOSSY: it has not the target's distribution." if self.lossy else ""),
            "no": no,
            "inconclusive": f"{self.arm} may be faster or slower than the target alone: the interval is too wide.",
            "too few prompts": f"{self.arm}: an interval takes 3 prompts or more, and without one nothing is claimed.",
            "nothing drafted": f"{self.arm} ran the target alone, as drafts did not pay or there were none.",
            "wrong": "No way measured gives the target's own answers. This is a bug in specdec: please report it.",
            "not measured": "There is nothing to compare: no way of drafting has a speed to set against the target's.",
        }[self.pays]


def overall_verdict(
    overall: Sequence[Summary], baselines: Mapping[str, str], wrong: Collection[str] = ()
) -> OverallVerdict:
    """overall: each variant's figures over all prompts. baselines: by variant. wrong: variants with wrong answers.

    Those cannot win, nor can those that drafted nothing; a lossy one wins only where no other was measured.
    """
    idle = {arm for arm, baseline in baselines.items() if arm == baseline} | {e.arm for e in overall if e.ran_alone}
    speeds = {each.arm: each.claimed.mean if each.claimed else float(each.arm in idle) for each in overall}
    ranking = tuple(sorted(speeds, key=lambda arm: -speeds[arm]))
    measured = {each.arm: each.speedup for each in overall if each.speedup}
    right = {arm: speedup for arm, speedup in measured.items() if arm not in wrong}
    if not right:
        return OverallVerdict(pays="wrong" if measured else "not measured", ranking=ranking)
    lossy = {each.arm for each in overall if each.distance_per_token is not None}
    drafted = {arm: speedup for arm, speedup in right.items() if arm not in idle}
    if not drafted:
        best = max(right, key=speeds.__getitem__)
        return OverallVerdict(pays="nothing drafted", arm=best, winner=baselines.get(best), ranking=ranking)
    exact = {arm: speedup for arm, speedup in drafted.items() if arm not in lossy} or drafted
    kind, pays = next((kind, pays) for kind, pays in _DECISIVE if kind in {each.difference for each in exact.values()})
    best = max((arm for arm in exact if exact[arm].difference == kind), key=speeds.__getitem__)
    winner = best if pays == "yes" else baselines.get(best) if pays == "no" else None
    return OverallVerdict(pays=pays, arm=best, speedup=exact[best], winner=winner, lossy=best in lossy, ranking=ranking)


_DECISIVE: tuple[tuple[Difference, Pays], ...] = (
    *(("faster", "yes"), ("inconclusive", "inconclusive"), ("too few prompts", "too few prompts")),
    *(("no difference", "no"), ("slower", "no")),
)
"""What of several differences decides the verdict, the first that there is."""
