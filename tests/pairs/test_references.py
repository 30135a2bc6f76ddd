"""What names a model on the Hub, and which files of a repository a name means."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.pairs.references import Reference, heads_among, leads_out, parse, quant_of, select, stem

FILES = [
    *("README.md", ".gitattributes", "imatrix.dat"),
    *("m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "mmproj-m-F16.gguf", "m-imatrix.gguf", "mtp-m-Q8_0.gguf"),
    *(f"BF16/m-BF16-0000{i}-of-00002.gguf" for i in (1, 2)),
]


def chosen(text, names=FILES):
    reference = parse(text)
    assert reference
    return select(reference, names)


def refused(text, names=FILES):
    with pytest.raises(DownloadError) as caught:
        chosen(text, names)
    assert caught.value.exit_code == 4
    return str(caught.value), caught.value.hint


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("org/name", ("org/name", "", "")),
        ("0rg/na.me_1-GGUF:q8_0", ("0rg/na.me_1-GGUF", "q8_0", "")),
        ("org/name:UD-Q4_K_XL", ("org/name", "UD-Q4_K_XL", "")),
        ("org/name/folder/file-00001-of-00002.gguf", ("org/name", "", "folder/file-00001-of-00002.gguf")),
        ("org/name/a file (1).gguf", ("org/name", "", "a file (1).gguf")),
    ],
)
def test_references(text, parts):
    assert parse(text) == Reference(*parts)
    assert str(parse(text)) == text


@pytest.mark.parametrize("host", ["huggingface.co", "hf.co"])
@pytest.mark.parametrize(
    ("path", "reference"),
    [
        *((f"org/name{end}", "org/name") for end in ("", "/", "/tree/main", "/tree/main/", "?library=llama.cpp#use")),
        ("org/name:Q8_0", "org/name:Q8_0"),
        ("org/name/blob/main/a-Q8_0.gguf", "org/name/a-Q8_0.gguf"),
        ("org/name/resolve/main/BF16/a%20file.gguf?download=true", "org/name/BF16/a file.gguf"),
        ("org/name/resolve/main/a%3Fb.gguf", "org/name/a?b.gguf"),
    ],
)
def test_addresses_on_the_hub(host, path, reference):
    assert parse(f"https://{host}/{path}") == parse(reference) is not None


@pytest.mark.parametrize(
    "text",
    [
        *("", "demo", "folder/file.gguf", "org/file:Q8_0.gguf", "../org/name", "/org/name", "~/org/name", "org//name"),
        *("org/name/file", "org/name:Q8_0/file.gguf", "org/name:../x", "org/name//file.gguf", "org/name/../file.gguf"),
        *("org/../file.gguf", "o..rg/name", "-org/name", "org\\name", "org/name/a\\b.gguf", "\u00f6rg/name"),
        *("org/name\n", "org/\x1b[31m", "https://example.org/org/name", "org/" + "x" * 97),
        *("https://hf.co/org", "https://hf.co/org/name/resolve/main/%2e%2e/a.gguf", "https://hf.co/org/%2e%2e"),
        *("org/name/", "org/name?download=true", "org%2Fname", "org/name/tree/main"),
    ],
)
def test_other_names(text):
    assert parse(text) is None


def test_a_file_that_is_here_is_meant_before_one_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse("org/name") == Reference("org/name"), "a folder is no model"
    assert parse("org/name:Q8_0") and parse("org/name/file.gguf")
    (tmp_path / "org" / "name" / "file.gguf").touch()
    assert parse("org/name/file.gguf") is None
    (tmp_path / "org" / "demo.yaml").touch()
    assert parse("org/demo.yaml") is None and parse("org/other.yaml")


@settings(deadline=None, derandomize=True)
@given(st.text(st.sampled_from("aB1./:-_\\~\n\x1b "), max_size=30))
def test_a_reference_says_what_it_was_read_from(text):
    found = parse(text)
    if found:
        assert str(found) == text
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", found.repo) and not leads_out(found.repo)
        assert not (found.quant and found.file)


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        *(("m.Q8_0.gguf", "Q8_0"), ("m-q4_k_m.gguf", "Q4_K_M"), ("m-ud-iq2_xxs.gguf", "UD-IQ2_XXS")),
        *(("m-TQ1_0.gguf", "TQ1_0"), ("m-f16.gguf", "F16"), ("m-BF16.gguf", "BF16"), ("m-MXFP4_MOE.gguf", "MXFP4_MOE")),
        *(("m-Q8_0-00002-of-00003.gguf", "Q8_0"), ("Q4_K_M/m-00001-of-00002.gguf", "Q4_K_M"), ("Q2_K.gguf", "Q2_K")),
        *(("Q4_0/m-Q8_0.gguf", "Q8_0"), ("a/b/UD-Q3_K_XL/m.gguf", "UD-Q3_K_XL")),
        *(("m.gguf", ""), ("m-8B.gguf", ""), ("Qwen3-0.6B.gguf", ""), ("m-Q4_K_M-it.gguf", ""), ("mQ8_0.gguf", "")),
    ],
)  # fmt: skip
def test_quantisations(name, quant):
    assert quant_of(name) == quant
    assert stem("a/m-Q8_0-00001-of-00003.gguf") == "a/m-Q8_0" and stem("m.gguf") == "m"


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("o/m:q4_k_m", ["m-Q4_K_M.gguf"]),
        ("o/m:bf16", FILES[-2:]),
        ("o/m:Q8_0", ["m-Q8_0.gguf"]),  # not the heads, unless they're named or alone
        ("o/m/mtp-m-Q8_0.gguf", ["mtp-m-Q8_0.gguf"]),
        ("o/m/m-Q8_0.gguf", ["m-Q8_0.gguf"]),
        ("o/m/BF16/m-BF16-00002-of-00002.gguf", FILES[-2:]),
    ],
)
def test_what_a_reference_means(text, files):
    assert chosen(text) == files
    assert chosen(text, FILES[::-1]) == files


def test_what_goes_with_a_model_is_none_and_heads_are_one_alone():
    """A projector for images, an importance matrix."""
    assert chosen("o/m:Q8_0", ["mtp-m-Q8_0.gguf", "m-Q4_0.gguf"]) == ["mtp-m-Q8_0.gguf"]
    assert chosen("o/m", ["mtp-m-Q8_0.gguf", "m-Q4_0.gguf"]) == ["m-Q4_0.gguf"]
    assert heads_among(FILES) == ["mtp-m-Q8_0.gguf"]
    assert chosen("o/m", ["README.md", "m-Q8_0.gguf", "mmproj-m-F16.gguf"]) == ["m-Q8_0.gguf"]
    assert "F16" in refused("o/m:F16")[0]
    assert refused("o/m/mmproj-m-F16.gguf")
    assert "no GGUF file" in refused("o/m", ["README.md", "mmproj-m-F16.gguf", "x.safetensors"])[0]


@pytest.mark.parametrize("text", ["o/m:Q2_K", "o/m", "o/m/absent.gguf", "o/m/README.md.gguf"])
def test_every_model_that_a_refusal_names_can_be_had(text):
    what, hint = refused(text)
    assert "o/m" in what and ("more than one model" in what) == (text == "o/m")
    named = hint.partition(": ")[2].removesuffix(".").split(", ")
    heads = [] if text == "o/m" else ["mtp-m-Q8_0.gguf"]
    assert {chosen(name)[0] for name in named} == {"BF16/m-BF16-00001-of-00002.gguf", *FILES[3:6], *heads}
    assert len(named) == 4 + len(heads)


def test_a_model_that_lacks_a_part_is_refused():
    what, _ = refused("o/m:BF16", [name for name in FILES if "00002-of" not in name])
    assert "lacks BF16/m-BF16-00002-of-00002.gguf" in what
    assert refused("o/m:BF16", [name for name in FILES if "00001-of" not in name])


@pytest.mark.parametrize("place", ["../", "/", "a/../", "a\\", "./", "C:"])
def test_a_name_that_leads_out_of_its_folder_is_no_file(place):
    name = f"{place}m-Q8_0.gguf"
    assert leads_out(name)
    assert "no GGUF file" in refused("o/m:Q8_0", [name])[0]
    assert chosen("o/m:Q8_0", [name, "m-Q8_0.gguf"]) == ["m-Q8_0.gguf"]
    assert not any(map(leads_out, ["m.gguf", "a/b/m.gguf", "..m.gguf", "a..b/m.gguf", ".hidden"]))
