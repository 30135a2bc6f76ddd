"""The target drafts for itself: the draft model is a copy of it with fewer layers or fewer bits.

Drafting with the model's own layers: Zhang et al., arXiv 2309.08168. The copy is a separate file, because llama.cpp
can't skip layers of a loaded model. By construction, it has the target's tokenizer.
"""

from __future__ import annotations

from specdec_cli.drafters.draft_model import ModelDrafter


class SelfDrafter(ModelDrafter):
    """Drafts like any draft model; only the origin of the model differs."""

    name = "self"
    needs = "a pruned or low-bit copy of the target (specdec draft)"
    helps = "targets without a small relative, if most tokens need fewer layers or bits"
