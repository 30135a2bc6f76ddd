"""The target drafts for itself: a copy of it with layers left out, or with fewer bits, is the draft model.

Draft and verify with the model's own layers: Zhang et al., arXiv 2309.08168. The copy is a file of its own, since
llama.cpp cannot skip layers of a loaded model; it has the target's tokenizer by construction.
"""

from __future__ import annotations

from specdec_cli.drafters.draft_model import ModelDrafter


class SelfDrafter(ModelDrafter):
    """Drafts as any draft model does; what sets it apart is where the model comes from."""

    name = "self"
    needs = "a pruned or low-bit copy of the target (specdec draft)"
    helps = "for targets that have no small relative, and whose layers or bits are more than most tokens need"
