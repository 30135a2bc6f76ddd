"""A conversation reads only what is new, in either model, and stays right when turns are changed, dropped or kept."""

import os
import pickle
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from string import ascii_letters

import gguf
import pytest
import tiny
from devices import device
from full_disk import full_disk

from specdec_cli.chat import saved_conversations
from specdec_cli.chat.saved_conversations import CONVERSATIONS
from specdec_cli.constraints.grammar import Grammar
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.engine.conversation import Conversation
from specdec_cli.engine.engine import one_session
from specdec_cli.settings.options import SamplingParams
from specdec_cli.settings.settings import Settings
from specdec_cli.weights.prompt import render

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
ENDING = TEMPLATE.replace("message.content }}", "message.content }}<|endoftext|>")
FORGETFUL = TEMPLATE.replace("message.content", "message.content if loop.last or message.role != 'assistant' else '-'")


@pytest.fixture
def talk(tmp_path):
    """Makes a conversation with a tiny pair, or another one with the same."""

    @contextmanager
    def begun(template=TEMPLATE, ctx=1024, kind="llama", sampling=None):
        target, draft = (tmp_path / f"{kind}{role}{len(template)}.gguf" for role in ("target", "draft"))
        if not draft.exists():
            tiny.write(target, kind, chat_template=template)
            tiny.write(draft, kind, noise=0.05, chat_template=template)
        drafting = {"drafter": "model", "draft_tokens": 3, "max_tokens": 12}
        settings = Settings(target=str(target), draft=str(draft), ctx=ctx, threads=1, **drafting)
        with one_session(settings, tune=False) as session:
            yield Conversation(session, sampling=sampling or SamplingParams())

    return begun


def ask(conversation, text):
    return told(conversation, conversation.ask(text))


def told(conversation, answer):
    reads = [event.tokens for event in answer if type(event).__name__ == "Prefill"]
    conversation.keep(answer)
    return answer.result, reads


def afresh(talk, answer):
    """The answer to the same prompt by an engine that has read nothing."""
    with talk() as conversation:
        return conversation.session.generate(list(answer.prompt), SamplingParams(seed=answer.seed)).tokens


def rendered(conversation):
    """The prompt of the last answer, and whether the BOS token goes before it."""
    session = conversation.session
    return render(conversation.messages[:-1], session.pair.target, session.interrupt.is_set)


def text_of(conversation, tokens):
    return b"".join(map(conversation.session.models.target.model.piece, tokens)).decode("utf-8", "replace")


@pytest.mark.parametrize("template", [TEMPLATE, FORGETFUL], ids=["plain", "forgetful"])
def test_each_turn_reads_its_own_tokens_in_both_models(talk, template):
    with talk(template) as conversation:
        conversation.system, before = "Be brief.", []
        for turn in range(6):
            known = conversation.n_tokens
            answer, reads = ask(conversation, f"Question {turn}?")
            assert answer.tokens == afresh(talk, answer)
            new = len(answer.prompt) - known
            if turn and template == TEMPLATE:
                assert len(reads) == 2, "a Prefill of the target, one of the draft"
                assert max(reads) <= new + 2, "and one or two that were not read yet"
                assert answer.prompt[: len(before)] == before, "answers keep the tokens that they were written in"
            elif turn:  # the last answer's place is another from the second turn on
                assert max(reads) < 60
            before = [*answer.prompt, *answer.tokens]


def test_the_end_of_a_turn_is_read_once(talk):
    """Though both the model and the template write it."""
    with talk(ENDING, sampling=SamplingParams(grammar=Grammar.rules('root ::= "xyz"'))) as conversation:
        first, _ = ask(conversation, "one")
        second, _ = ask(conversation, "two")
        assert first.finish_reason == "stop" and first.tokens[-1] == 0
        assert second.prompt == conversation.session.models.target.model.tokenize(*rendered(conversation))


@pytest.mark.parametrize("text", ["eh", "é"])
def test_tokens_that_say_more_than_a_message_are_read_again(talk, text):
    """The stream was left at a possible stop string, or within a character."""
    sampling = SamplingParams(grammar=Grammar.rules(f'root ::= "{text}"'), stop=("hz",), max_tokens=1)
    with talk(sampling=sampling) as conversation:
        answer = conversation.ask("one")
        next(event for event in answer if type(event).__name__ == "Step")
        conversation.keep(answer)
        assert conversation.messages[-1]["content"] == text[:-1]
        assert conversation.read.tokens == tuple(answer.result.prompt)


def spaced(writer):
    """A tokenizer that puts a space before a text, as SentencePiece does."""
    kinds = gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256, *[gguf.TokenType.NORMAL] * 43
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *ascii_letters[:42]])
    writer.add_token_types(kinds)
    writer.add_token_scores([0.0] * len(kinds))
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def test_a_template_text_gets_no_space_after_what_was_read(talk, monkeypatch):
    monkeypatch.setattr(tiny, "add_tokenizer", spaced)
    with talk(FORGETFUL) as conversation:
        ask(conversation, "one")
        second, _ = ask(conversation, "two")
        assert text_of(conversation, second.prompt) == f" {rendered(conversation)[0]}"


def test_turns_are_answered_again_taken_back_and_changed(talk):
    with talk() as conversation:
        with pytest.raises(UsageError, match="no message"):
            conversation.regenerate()
        assert conversation.undo() is None
        conversation.session.interrupt.set()
        with pytest.raises(Interrupted):
            conversation.ask("one")
        assert conversation.messages == []
        conversation.session.interrupt.clear()
        ask(conversation, "one")
        second, _ = ask(conversation, "two")
        again, reads = told(conversation, conversation.regenerate())
        assert again.tokens == second.tokens and max(reads) <= 2 and len(conversation.messages) == 4
        assert conversation.undo() == "two" and len(conversation.messages) == 2
        other, _ = ask(conversation, "three")
        assert other.tokens == afresh(talk, other)
        conversation.system = "Be kind."
        changed, _ = ask(conversation, "four")
        assert changed.tokens == afresh(talk, changed)
        conversation.clear()
        assert conversation.messages == [{"role": "system", "content": "Be kind."}]


def test_a_full_context_drops_the_oldest_turns_and_never_the_system_message(talk):
    with talk(ctx=256) as conversation:
        conversation.system = "SYSTEM"
        for turn in range(8):
            answer, _ = ask(conversation, f"Question {turn}, which is long?")
            text = text_of(conversation, answer.prompt)
            assert text.startswith("[system] SYSTEM\n[user]") and f"Question {turn}" in text
            assert len(answer.prompt) + 64 <= 256 and answer.complete
        assert "Question 0" not in text and conversation.n_dropped and len(conversation.messages) == 17
        conversation.drops_oldest = False
        with pytest.raises(SpecdecError, match="fills the context of 256") as full:
            conversation.ask("One more?")
        assert len(conversation.messages) == 17, "the message is not kept"
        assert str(pickle.loads(pickle.dumps(full.value))) == str(full.value)
        conversation.drops_oldest = True
        with pytest.raises(SpecdecError, match="fills the context"):
            conversation.ask("long " * 300)


def test_a_full_context_drops_several_turns_at_once_and_quickly(talk, monkeypatch):
    """Otherwise each turn would drop another one, and read all later ones again."""
    rendered = []
    monkeypatch.setattr("specdec_cli.engine.conversation.render", lambda *args: rendered.append(1) or render(*args))
    with talk(ctx=512) as conversation:
        ask(conversation, "long " * 60)
        conversation.messages *= 50
        rendered.clear()
        turns = [ask(conversation, f"Question {turn}?") for turn in range(20)]
        reread = [max(reads) > 60 for _, reads in turns]
        assert 2 <= sum(reread) <= 7 and len(rendered) < 60
        assert all(len(answer.prompt) > 100 for answer, _ in turns[12:])
        assert turns[-1][0].tokens == afresh(talk, turns[-1][0])
        assert (dropped := conversation.n_dropped) > 100
        saved_conversations.save(conversation, "full")
        saved_conversations.restore(conversation, "full")
        ask(conversation, "short")
        assert conversation.n_dropped == dropped, "a restored one begins where it began"
        ask(conversation, "long " * 62)
        assert dropped < (by_long := conversation.n_dropped) < len(conversation.messages) - 2, "what has room stays"
        conversation.undo()
        ask(conversation, "short")
        assert dropped <= conversation.n_dropped < by_long, "the long message has left its room"
        conversation.clear()
        assert ask(conversation, "one")[0].complete and conversation.n_dropped == 0


def test_dropped_turns_come_back_when_there_is_room(talk):
    """In a larger context, and for those that were removed."""
    with talk(ctx=512) as conversation:
        ask(conversation, "short")
        saved_conversations.save(conversation, "short")
        for turn in range(12):
            ask(conversation, f"Question {turn}, which is long?")
        dropped = conversation.n_dropped
        assert dropped > 4
        saved_conversations.save(conversation, "long")
        saved_conversations.restore(conversation, "short")
        saved_conversations.save(conversation, "short")
        assert CONVERSATIONS.load("short").n_dropped == 0
        for _ in range(2):
            saved_conversations.restore(conversation, "long")
            saved_conversations.save(conversation, "long")
        assert CONVERSATIONS.load("long").n_dropped == dropped
        while len(conversation.messages) > dropped + 2:
            conversation.undo()
        answer, _ = ask(conversation, "short")
        assert 0 < conversation.n_dropped < dropped and len(answer.prompt) > 200
        while len(conversation.messages) > 4:
            conversation.undo()
        assert ask(conversation, "short")[0].complete and conversation.n_dropped == 0
    with talk() as conversation:
        saved_conversations.restore(conversation, "long")
        answer, _ = ask(conversation, "short")
        assert conversation.n_dropped == 0 and answer.tokens == afresh(talk, answer)


def test_a_kept_conversation_goes_on_without_being_read_again(talk):
    with talk() as conversation:
        ask(conversation, "one")
        ask(conversation, "two")
        killed = CONVERSATIONS.folder() / "specdec-0.tmp"
        killed.parent.mkdir(parents=True, exist_ok=True)
        killed.touch()
        os.utime(killed, (1, 1))
        saved_conversations.save(conversation, "mine")
        assert not killed.exists()
        expected, _ = ask(conversation, "three")
    with talk() as conversation:
        assert saved_conversations.restore(conversation, "mine") == []
        answer, reads = ask(conversation, "three")
        assert answer.tokens == expected.tokens and max(reads) < 30 < len(answer.prompt)
    record = CONVERSATIONS.path("mine")
    saved = record.read_text()
    for role, who in (("draft", "draft reads"), ("target", "models read")):
        record.write_text(saved.replace(f'"{role}": "', f'"{role}": "other '))
        with talk() as conversation:
            (note,) = saved_conversations.restore(conversation, "mine")
            assert note.startswith(f"the {who} the conversation again") and "llama.cpp" in note
            assert bool(conversation.n_tokens) == (role == "draft"), "another target has other tokens"
            answer, _ = ask(conversation, "three")
            assert answer.tokens == (expected.tokens if role == "draft" else afresh(talk, answer))


@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
def test_a_recurrent_state_is_saved_without_the_end_of_the_last_draft(talk, kind):
    """It could not drop it later."""
    talk = partial(talk, kind=kind)
    with talk(sampling=SamplingParams(grammar=Grammar.rules("root ::= [a-z] [a-z] [a-z] [a-z]"))) as conversation:
        ask(conversation, "one")
        saved_conversations.save(conversation, "mine")
    with talk() as conversation:
        saved_conversations.restore(conversation, "mine")
        answer, reads = ask(conversation, "two")
        assert answer.tokens == afresh(talk, answer) and max(reads) < 30 < len(answer.prompt)


def test_a_kept_conversation_that_does_not_fit_is_read_again_without_its_oldest_turns(talk):
    with talk() as conversation:
        ask(conversation, "long " * 60)
        saved_conversations.save(conversation, "long")
    with talk(ctx=256) as conversation:
        (note,) = saved_conversations.restore(conversation, "long")
        assert "the models read the conversation again" in note
        assert ask(conversation, "two")[0].complete and conversation.n_dropped == 2


@pytest.fixture
def saved(talk):
    """Conversations saved as "mine" and "other", and the next answer of the first."""
    with talk() as conversation:
        ask(other := Conversation(conversation.session), "other")
        saved_conversations.save(other, "other")
        ask(conversation, "one")
        saved_conversations.save(conversation, "mine")
        return ask(conversation, "two")[0].tokens


DAMAGES = {
    "a bit": lambda content: content[:-99] + bytes([content[-99] ^ 1]) + content[-98:],
    "cut": lambda content: content[:-1],
    "another's": lambda _: saved_conversations.cache_path("other", "target").read_bytes(),
    "of an older format": lambda content: b"specdec-state-1\n" + content,
}
PLACES = {
    "missing": lambda _: None,
    "a folder": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a loop": lambda path: path.symlink_to(path),
    "a device": lambda path: path.symlink_to(device(path.parent, "zero")),
}


@pytest.mark.parametrize("how", [*DAMAGES, *PLACES])
def test_a_damaged_state_is_read_again(talk, saved, how):
    path = saved_conversations.cache_path("mine", "draft" if how in PLACES else "target")
    content = path.read_bytes()
    path.unlink()
    if how in PLACES:
        PLACES[how](path)
    else:
        path.write_bytes(DAMAGES[how](content))
    with talk() as conversation:
        notes = saved_conversations.restore(conversation, "mine")
        assert len(notes) == 1 and "its saved cache is gone or damaged" in notes[0]
        assert ask(conversation, "two")[0].tokens == saved
        if how in ("a folder", "a FIFO", "a device"):
            (note,) = saved_conversations.save(conversation, "mine")
            assert "cannot write" in note and not path.is_file()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"checksum": ', '"older": '),
        ('"text": "', '"text": "x'),
        ('"tokens": [', '"tokens": [1,'),
        ('"marks": [', '"marks": [[0, 1],'),
    ],
)
def test_tokens_that_are_not_those_that_were_read_are_read_again(talk, saved, old, new):
    record = CONVERSATIONS.path("mine")
    record.write_text(record.read_text().replace(old, new))
    with talk() as conversation:
        notes = saved_conversations.restore(conversation, "mine")
        assert len(notes) == 1 and "the models read the conversation again" in notes[0]
        answer, reads = ask(conversation, "two")
        assert answer.tokens == afresh(talk, answer) and max(reads) > 20


def test_a_full_disk_keeps_what_was_saved_before(talk, saved):
    with talk() as conversation:
        saved_conversations.restore(conversation, "mine")
        ask(conversation, "two")
        with full_disk(100), pytest.raises(SpecdecError, match=r"cannot write .*mine\.json"):
            saved_conversations.save(conversation, "mine")
        assert not list(CONVERSATIONS.folder().glob("*.tmp"))
        again = Conversation(conversation.session)
        assert saved_conversations.restore(again, "mine") == []
        assert ask(again, "two")[0].tokens == saved


def test_where_the_caches_do_not_fit_the_messages_are_saved(talk, saved):
    most_bytes = saved_conversations.cache_path("mine", "target").stat().st_size // 2
    with talk() as conversation:
        saved_conversations.restore(conversation, "mine")
        ask(conversation, "two")
        with full_disk(most_bytes):
            notes = saved_conversations.save(conversation, "mine")
        assert notes[0].startswith("the target will read the conversation again: cannot write")
    with talk() as conversation:
        (note,) = saved_conversations.restore(conversation, "mine")
        assert note.startswith("the models read") and len(conversation.messages) == 4
        answer, _ = ask(conversation, "three")
        assert answer.tokens == afresh(talk, answer)


def test_what_is_not_there_damaged_or_no_name(talk):
    with talk() as conversation:
        for name in ("", "a/b", ".hidden", "x" * 200):
            with pytest.raises(UsageError, match="cannot be a conversation's name"):
                saved_conversations.save(conversation, name)
        with pytest.raises(UsageError, match="no saved conversation 'mine'"):
            saved_conversations.restore(conversation, "mine")
        saved_conversations.save(conversation, "mine")
        CONVERSATIONS.path("mine").write_text('{"format": 1, "messages": [{"role": "robot", "content": "x"}]}')
        with pytest.raises(SpecdecError, match="cannot read"):
            saved_conversations.restore(conversation, "mine")
