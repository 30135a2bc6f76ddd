from dataclasses import replace

import ggufs
import pytest

from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.gguf import chat_template as chat
from specdec_cli.gguf.header import Header
from specdec_cli.weights.prompt import tokenize

CHATML = """{{ bos_token }}{% for m in messages %}
    {{- '<|im_start|>' + m['role'] + '\\n' + m.content | trim + '<|im_end|>' + '\\n' -}}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' -}}
{% endif %}"""


def model(template=CHATML, **fields) -> Header:
    metadata = {
        "tokenizer.ggml.tokens": ggufs.string_array(["<s>", "</s>", "a"]),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": template,
        **{f"tokenizer.ggml.{key}": value for key, value in fields.items()},
    }
    return Header("chat.gguf", 3, metadata, (), 0)


@pytest.fixture(scope="module", autouse=True)
def impatient():
    """Templates without end take less of the tests' time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat._renderer, "_limits", replace(chat._renderer._limits, cpu_s=0.3))
        chat._renderer._stop()
        yield
        chat._renderer._stop()


def user(text: str = "Hi") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Letters:
    """A stand-in for a loaded model: one token a character, 0 for BOS; remembers what it was asked."""

    n_vocab = 1 << 20

    def __init__(self) -> None:
        self.texts: list[str] = []

    def tokenize(self, text: str, add_bos: bool = True) -> list[int]:
        self.texts.append(text)
        return [0] * add_bos + [ord(letter) for letter in text]


def test_the_conversation_is_rendered_up_to_where_the_answer_begins():
    system = {"role": "system", "content": " Be brief. "}
    assert chat.render(model(), [system, *user()]) == (
        "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ messages[0].content }}", "{{ 7 * 7 }}"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is defined }}", "False"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{% for m in messages %}\n    {% if true %}\nx\n    {% endif %}\n{% endfor %}\n", "x\n"),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
    ],
)
def test_what_templates_in_use_rely_on(template, text):
    assert chat.render(model(template), user("{{ 7 * 7 }}")) == text


@pytest.mark.parametrize("token", [None, -1, 3, "0"])
def test_a_special_token_that_does_not_exist_is_empty(token):
    assert chat.special_token(model(bos_token_id=token), "bos") == ""


@pytest.mark.parametrize("template", ["  \n", None, 5])
def test_a_model_without_a_template(template):
    assert chat.template_of(model(template)) is None


HOSTILE = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class in a format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "globals of a helper": "{{ raise_exception.__globals__['jinja2'].x }}",
    "import": "{% import 'os' as os %}{{ os }}",
    "mutation": "{{ messages.append(messages) }}{{ messages.clear() }}",
    "huge range": "{% for i in range(10 ** 12) %}x{% endfor %}",
    "huge string": "{{ 'x' * 10 ** 15 }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "source": "{{ a }}" * 9000,
}
GROWING = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a doubled text": "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "shared lists": "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ ns.x }}",
    "nested": "{% set n = namespace(x=()) %}{% for i in range(9999) %}{% set n.x = (n.x,) %}{% endfor %}{{ {n.x: 1} }}",
    "one list many times": "{{ ([[1]] * 90000) | sum(start=[]) }}",
}
BROKEN = {
    "syntax": "{% if %}",
    "division": "{{ 1 / 0 }}",
    "digits": "{{ 10 ** 5000 }}",
    "own refusal": "{{ raise_exception('only one\n  system message') }}",
}


@pytest.mark.parametrize("template", [*HOSTILE.values(), *BROKEN.values()], ids=[*HOSTILE, *BROKEN])
def test_a_hostile_or_broken_template_is_refused_in_one_line(template):
    conversation = user()
    with pytest.raises(SpecdecError, match=r"^the chat template of chat\.gguf failed: .+$") as caught:
        chat.render(model(template), conversation)
    assert "--raw" in caught.value.hint and conversation == user()
    assert "only one" not in template or "only one system message" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("template", GROWING.values(), ids=GROWING)
def test_a_template_that_goes_on_or_grows_without_end_is_refused(template):
    why = "(too much time or memory|recursion)"
    with pytest.raises(SpecdecError, match=rf"^the chat template of chat\.gguf failed: .*{why}"):
        chat.render(model(template), user())


def test_a_template_is_interrupted(monkeypatch):
    """Ctrl-C sets a flag while specdec catches signals; otherwise it raises KeyboardInterrupt, which goes through."""
    monkeypatch.setattr(chat._renderer, "_limits", replace(chat._renderer._limits, cpu_s=20.0))
    chat._renderer._stop()
    asked = iter([False] * 5 + [True])
    with pytest.raises(Interrupted):
        tokenize("Hi", Letters(), model(GROWING["loops"]), stopped=lambda: next(asked))
    assert next(asked, None) is None

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chat.render(model(), user(), interrupt)


def test_a_long_conversation_may_be_copied_as_often_as_templates_do():
    conversation = [message for _ in range(300) for message in (*user("word, " * 500), *user("b"))]
    template = (
        "{% for m in messages %}{% set c = (m.content|trim).split('</think>')[-1] %}{{ c.lstrip() ~ '\n' }}{% endfor %}"
    )
    assert len(chat.render(model(template), conversation)) == 300 * (2999 + 1 + 2)


def test_tokens_of_a_conversation_have_one_bos():
    letters = Letters()
    prompt = tokenize("Hi", letters, model(), "Be brief.")
    assert letters.texts == [chat.render(model(), [{"role": "system", "content": "Be brief."}, *user()])]
    assert 0 not in prompt.tokens and prompt.notes == ()


def test_the_users_variables_are_the_templates_too():
    letters = Letters()
    for given in ({}, {"enable_thinking": False}, {"bos_token": "", "enable_thinking": "é"}):
        tokenize("Hi", letters, model("{{ bos_token }}{{ enable_thinking }}"), variables=given)
    assert letters.texts == ["<s>", "<s>False", "é"]


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}",
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
    ],
    ids=["refuses it", "leaves it out"],
)
def test_a_system_message_without_a_place_joins_the_next(template):
    letters = Letters()
    tokenize("Hi", letters, model(template), "Be brief.")
    assert letters.texts == ["Be brief.\nHi"]


def test_a_part_of_a_system_message_may_be_left_out():
    letters, template = Letters(), "{% for m in messages %}{{ m.content.replace(' /no_think', '') }}|{% endfor %}"
    tokenize("Hi", letters, model(template), "Be brief. /no_think")
    assert letters.texts == ["Be brief.|Hi|"]


def test_what_is_no_text_in_a_message_is_dropped_but_not_calls_of_tools():
    letters, message = Letters(), {"role": "assistant", "content": "", "name": "a", "tool_calls": None, "at": 17}
    tokenize([message], letters, model("{{ messages[0] | tojson }}"))
    assert letters.texts == ['{"role": "assistant", "content": "", "name": "a"}']
    with pytest.raises(UsageError, match="not a message"):
        tokenize([{**message, "tool_calls": [{}]}], letters, model())


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi!", "Hi!"),
        ("<|channel|>final <|constrain|>json<|message|>{}", "{}"),
        (2 * "<|channel|>final<|message|>Hi!<|start|>assistant" + "<|channel|>final<|message|>Yes.", "Yes."),
        ("<|channel|>analysis<|message|>Hm", ""),
        ("Write <|channel|>.", "Write <|channel|>."),
    ],
)
def test_earlier_answers_are_read_without_their_analysis(answer, shown):
    letters = Letters()
    tokenize([*user(), {"role": "assistant", "content": answer}], letters, model("{{ messages[1].content }}"))
    assert letters.texts == [shown]


@pytest.mark.parametrize(
    "header", [model("{{ messages[0].content }}"), model("x{{ bos_token }}"), model(bos_token_id=None)]
)
def test_bos_is_added_where_the_template_does_not_begin_with_it(header):
    assert tokenize("Hi", Letters(), header).tokens[0] == 0


@pytest.mark.parametrize(("raw", "template"), [(True, CHATML), (False, None)])
def test_a_raw_prompt_goes_through_as_it_is(raw, template):
    letters = Letters()
    prompt = tokenize("  Hi\n", letters, model(template), raw=raw)
    assert (letters.texts, prompt.tokens[0], prompt.notes) == (["  Hi\n"], 0, ())
    notes = tokenize("Hi", letters, model(template), "Be brief.", raw=raw, variables={"a": 1}).notes
    assert [note.split()[0] for note in notes] == ["--system", "--chat-template-kwargs"]


def test_a_prompt_without_tokens_is_refused(monkeypatch):
    monkeypatch.setattr(Letters, "tokenize", lambda self, text, add_bos=True: [])
    with pytest.raises(SpecdecError) as caught:
        tokenize("Hi", Letters(), model(), raw=True)
    assert caught.value.hint
