"""One model of a pair in memory: its context, and what its passes cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specdec_cli.decoding.types import DraftModel
from specdec_cli.drafters.reduced_draft import ReducedDraft
from specdec_cli.drafters.short_memory import ShortMemory
from specdec_cli.engine.model_pair import setup_of
from specdec_cli.engine.pass_costs import PassCosts
from specdec_cli.gguf import reduced_vocabulary
from specdec_cli.gguf.header import Header
from specdec_cli.llama import library
from specdec_cli.llama.adapter import Adapter
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement


@dataclass(slots=True, eq=False)
class LoadedModel:
    """role: target, draft or small draft. head: that it is one, of which kind. The context and the costs come with
    `open`.
    """

    role: str
    path: Path
    header: Header
    model: Model
    threads: int
    placement: Placement
    adapters: tuple[Adapter, ...] = ()
    head: str = ""
    context: LlamaContext | None = None
    costs: PassCosts | None = None
    drafting: DraftModel | None = None
    """Of a draft model: the context as a drafter uses it."""

    @property
    def offloaded(self) -> bool:
        """Whether layers lie on a GPU or on other machines."""
        return self.placement.on_devices and (self.placement.is_remote or library.supports_gpu())

    @property
    def setup(self) -> str:
        """Which devices and adapters, if any but the default ones; and whether it is a head."""
        return " ".join(filter(None, (self.head, setup_of((self.placement,), self.adapters))))

    @property
    def opened(self) -> LlamaContext:
        if self.context is None:
            raise RuntimeError("the contexts are opened first")
        return self.context

    @property
    def passes(self) -> PassCosts:
        """What they cost."""
        if self.costs is None:
            raise RuntimeError("the contexts are opened first")
        return self.costs

    def window(self, n_ctx: int, asked: int | None) -> int:
        """How many tokens of a text of up to n_ctx a draft model holds at once. asked: by --draft-window."""
        return min(n_ctx, self.model.n_ctx_train or n_ctx, asked or n_ctx)

    def close_context(self) -> None:
        """Keep what was measured, and free the context."""
        if self.costs is not None:
            self.costs.keep()
        if self.context is not None:
            self.context.close()
        self.context = self.costs = self.drafting = None

    def use(self, context: LlamaContext, costs: PassCosts, text_tokens: int) -> None:
        """Take a context, for texts of up to so many tokens."""
        self.context, self.costs = context, costs
        self.drafting = context if context.n_ctx >= text_tokens else ShortMemory(context)
        if vocabulary := reduced_vocabulary.read(self.header):
            self.drafting = ReducedDraft(self.drafting, vocabulary.ids, vocabulary.reads)
