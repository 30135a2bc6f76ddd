"""--rpc: the target on other machines, and what becomes of an answer when one of them fails.

Servers do not repack weights into another order for faster kernels, and such kernels round otherwise. So text over the
network is compared bit for bit with that of weights which are not repacked here either.
"""

import json
import signal
import struct
from time import monotonic

import pytest
import tiny
from driver import DEMO, TARGET, call, specdec, start, succeeded
from engines import open_session
from prompts import PROMPTS
from rpc import VERSION_OF_ANOTHER_AGE, differs_by_repacking, fake_server, free_port, lying_server, rpc_servers

from specdec_cli.llama import library, quantize
from specdec_cli.llama.interrupt import Interrupt

PROMPT = "def parse_date(text):\n"
LONG = ("-k", "4", "-n", "1900", "-c", "2000")
SOON_S = 25.0
"""Of which 5 s are patience with a server, and the others a busy machine's."""
_Q4_0 = 2
"""llama.cpp's number of files with weights of that type."""


@pytest.fixture(scope="module")
def two():
    """Two servers that outlive their clients."""
    with rpc_servers(2) as servers:
        yield servers


@pytest.fixture
def unrepacked(monkeypatch):
    """Weights are not repacked, as servers do not repack them."""
    monkeypatch.setenv("SPECDEC_REPACK", "0")


def addresses(servers):
    return ",".join(server.address for server in servers)


def answer(*options, servers=()):
    rpc = ["--rpc", addresses(servers)] if servers else []
    return succeeded("run", PROMPT, *rpc, "-n", "48", *options).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--drafter", "none"),
        ("--drafter", "model", "-k", "4"),
        ("--drafter", "ngram+model", "-k", "4"),
        ("--drafter", "model", "-k", "6", "--tree", "3"),
        ("--drafter", "lookahead", "-k", "8"),
        ("-m", TARGET, "-md", DEMO / "eagle3.gguf", "--drafter", "eagle3", "-k", "3"),
        ("-m", TARGET, "-md", DEMO / "medusa.gguf", "--drafter", "medusa", "-k", "6", "--tree", "4"),
        ("--drafter", "model", "-k", "4", "--temp", "0.8", "--seed", "5"),
        ("-ngl", "2", "--drafter", "model", "-k", "3"),
    ],
    ids=lambda options: " ".join(part for part in options if isinstance(part, str)),
)
@pytest.mark.usefixtures("unrepacked")
def test_the_text_is_the_local_one(two, options):
    """`-k auto` goes by what is measured, and chooses other widths over the network."""
    local = answer(*options)
    assert answer(*options, servers=two) == answer(*options, servers=two[:1]) == local


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram+model", "lookahead"])
def test_with_auto_too_where_nothing_rounds(two, drafter, table_pair):
    options = (*table_pair, "--raw", "--drafter", drafter)
    assert answer(*options, servers=two) == answer(*options) != ""


@pytest.fixture(scope="module")
def fewer_bits(tmp_path_factory):
    """The bundled target with weights that are repacked on nearly every processor; its own are on some."""
    path = tmp_path_factory.mktemp("fewer-bits") / "target.gguf"
    quantize.write(quantize.Copy(TARGET, path, 1, file_type=_Q4_0), Interrupt(), lambda _: None)
    return path


REPACKED_WAYS = [
    {"drafter": "none"},
    {"drafter": "model", "draft_tokens": 4},
    {"drafter": "model", "draft_tokens": 6, "tree": 3},
    {"drafter": "ngram+model", "draft_tokens": "auto"},
    {"drafter": "lookahead", "draft_tokens": "auto"},
    {"drafter": "model", "draft_tokens": 4, "temperature": 0.8, "accept": "coupled"},
]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["bundled", "fewer bits"])
def test_with_repacked_weights_here_the_text_is_the_local_one_up_to_their_rounding(which, fewer_bits, monkeypatch):
    """As they are built, whatever is repacked here. AVX2 has answers with fewer bits differ on both prompts."""
    target, another = (TARGET, fewer_bits) if which == "bundled" else (fewer_bits, TARGET)
    options = {"prompt_tokens": 128, "ways": REPACKED_WAYS, "max_tokens": 40}
    with (  # with servers of their own: this process stays their client
        rpc_servers(2) as servers,
        open_session(**options, target=str(target)) as here,
        open_session(**options, target=str(target), rpc=addresses(servers)) as there,
    ):
        monkeypatch.setenv("SPECDEC_REPACK", "0")
        with open_session(**options, target=str(target)) as plain, open_session(target=str(another)) as wrong:
            for seed in (2, 30):
                prompt = here.tokenize(PROMPTS[seed], raw=True)
                for way in REPACKED_WAYS:
                    differs_by_repacking(here, there, plain, prompt, seed, **way)
            with pytest.raises(AssertionError, match="differ without repacking"):
                differs_by_repacking(here, there, wrong, prompt, drafter="none")


@pytest.mark.usefixtures("unrepacked")
@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
def test_a_target_that_cannot_forget_is_rewound_there_too(two, kind, tmp_path):
    model = tiny.write(tmp_path / f"{kind}.gguf", kind)
    options = ("-m", str(model), "--drafter", "ngram", "-k", "3", "--raw")
    assert answer(*options, servers=two[:1]) == answer(*options)


@pytest.mark.slow
def test_it_measures_compares_and_answers_several_at_once(two, table_pair, tmp_path):
    rpc = ("--rpc", addresses(two))
    prompts = ("--prompts", "python", "--limit", "2", "-n", "16", "--repeat", "1")
    exact = succeeded("compare", *rpc, *table_pair, *prompts, "--json")
    exactness = json.loads(exact.stdout)["exactness"]
    assert exactness and all(counts["identical"] == 2 for counts in exactness.values()), exactness
    assert "Verifying 2 tokens takes" in succeeded("tune", *rpc, "--seconds", "2").stdout
    asked, answered = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"model": "target.gguf", "prompt": PROMPT, "max_tokens": 8}
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body} for number in range(6)
    ]
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    succeeded("batch", asked, "-o", answered, *rpc)
    assert answered.read_text().count('"status_code":200') == 6


def told(done):
    assert done.returncode == 1, done.stderr.decode()
    what, fix = done.stderr.decode().rstrip("\n").split("\n")[-2:]
    assert what.startswith("specdec: ") and fix.startswith("  ") and len(fix) > 10
    return what


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["silent", "http", "old"])
def test_what_is_no_server_is_an_error_of_two_lines(kind):
    started = monotonic()
    with fake_server(kind) as where:
        done = specdec("run", PROMPT, "--rpc", where)
    said = {"silent": "not answered for 5 s", "old": ".".join(map(str, VERSION_OF_ANOTHER_AGE))}
    what = told(done)
    assert where in what and said.get(kind, "is gone, or is not a llama.cpp server") in what
    assert done.stdout == b"" and monotonic() - started < SOON_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "reply", "says"),
    [
        ("device_count", struct.pack("<QI", 4, 2**32 - 1), "claims 4,294,967,295 devices"),
        ("device_count", struct.pack("<QI", 4, 0), "cannot use the server"),
        ("get_alignment", struct.pack("<QQ", 8, 3), "is gone, or is not a llama.cpp server"),
        ("buffer_get_base", struct.pack("<QQ", 8, 0), "is gone, or is not a llama.cpp server"),
    ],
)
def test_a_server_that_lies_is_an_error_of_two_lines(command, reply, says):
    """llama.cpp would end the process, or take memory for billions of devices."""

    def lie(asked, told):
        return reply if asked == command else told

    with rpc_servers(1) as (server,), lying_server(server, lie) as where:
        done = specdec("run", PROMPT, "--rpc", where, "--drafter", "none")
    what = told(done)
    assert where in what and says in what and done.stdout == b""


def fail(servers, how):
    """An answer in whose middle something is done to a server: what was written, the error, and how long it took."""
    running = start("run", PROMPT, "--rpc", addresses(servers), *LONG)
    try:
        written = b""
        while len(written.strip()) < 40:
            written += (news := running.stdout.read1(200))
            assert news
        how(running)
        began = monotonic()
        rest, errors = running.communicate(timeout=30)
    finally:
        running.kill()
        running.wait()
    assert monotonic() - began < SOON_S
    return running.returncode, written + rest, errors.decode()


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "which"), [("stall", 1), ("die", 0)])
@pytest.mark.usefixtures("unrepacked")
def test_a_server_that_fails_in_mid_answer_ends_it_with_what_was_written(fault, which):
    with rpc_servers(2) as servers:
        code, written, errors = fail(servers, lambda _: getattr(servers[which], fault)())
        survivor = servers[1 - which]
        assert survivor.process.poll() is None  # it does not die of its client's end
        assert answer("-k", "2", servers=[survivor])
    written = written.rstrip(b"\n")
    more = min(len(written) + 100, 1900)  # tokens, none of which has less than a byte
    whole = succeeded("run", PROMPT, *LONG, "-n", more).stdout.encode()
    assert code == 1 and len(written) < len(whole) and whole.startswith(written)
    what, fix = errors.rstrip("\n").split("\n")[-2:]
    assert what.startswith("specdec: ") and fix.startswith("  ")
    assert ("is gone" if fault == "die" else "has not answered for 5 s") in what
    assert fault == "stall" or servers[which].address in what


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_for_a_server_that_stalls():
    def stall(running):
        servers[0].stall()
        running.send_signal(signal.SIGINT)

    with rpc_servers(1) as servers:
        code, _, _ = fail(servers, stall)
    assert code == 130


def test_addresses_are_refused_that_are_none_or_not_private():
    for text in ("here", "host:70000", "a:1,a:1", "::1:5"):
        refused = call("run", PROMPT, "--rpc", text)
        assert refused.exit_code == 2 and "HOST:PORT" in refused.stderr
    public = call("run", PROMPT, "--rpc", "8.8.8.8:50052")
    assert public.exit_code == 2 and "--rpc-insecure" in public.stderr
    nobody = call("run", PROMPT, "--rpc", f"127.0.0.1:{free_port()}")
    assert nobody.exit_code == 1 and "refused" in nobody.stderr


@pytest.mark.usefixtures("unrepacked")
def test_heads_that_use_the_targets_output_matrix_go_there(two, tmp_path):
    target, head = (tiny.write(tmp_path / f"{kind}.gguf", kind) for kind in ("qwen3", "eagle3-bare"))
    options = ("-m", target, "-md", head, "--drafter", "eagle3", "-k", "3", "--raw")
    assert answer(*options, servers=two) == answer(*options)


def test_next_token_layers_of_the_target_do_not_go_there(two, tmp_path):
    model = tiny.write(tmp_path / "model.gguf", "qwen35-mtp")
    done = succeeded("run", "x", "--raw", "-m", model, "--drafter", "mtp", "--rpc", two[0].address, "-n", "4")
    assert "not used: with --rpc, the next-token layers" in done.stderr


@pytest.mark.parametrize("command", [("run", PROMPT, "--rpc", "127.0.0.1:5"), ("rpc-server", "--port", "5")])
def test_a_build_without_rpc_says_so(command, monkeypatch):
    monkeypatch.setattr(library, "knows_rpc", lambda: False)
    done = call(*command)
    assert done.exit_code == 1 and "no RPC" in done.stderr and "GGML_RPC" in done.stderr


def test_a_server_says_where_it_listens_and_ends_on_ctrl_c():
    with rpc_servers(1) as (server,):
        taken = call("rpc-server", "--port", server.port)
        assert taken.exit_code == 1 and "cannot listen" in taken.stderr
        assert server.end() == 130
        assert f"CPU at {server.address}" in server.process.stderr.read().decode()
    unknown = call("rpc-server", "--device", "CUDA7")
    assert unknown.exit_code == 2 and "CPU" in unknown.stderr
    assert "--rpc-insecure" in succeeded("run", "--help-all").stdout
