"""Which packages may go into the corpus: only those that state permissive licences, and nothing but them."""

from email.message import Message

import pytest

from training.licences import allows, decide


def metadata(expression="", licence="", classifiers=()):
    found = Message()
    if expression:
        found["License-Expression"] = expression
    if licence:
        found["License"] = licence
    for classifier in classifiers:
        found["Classifier"] = f"License :: {classifier}"
    return found


ALLOWED = (
    *("MIT", "MIT OR GPL-3.0-only", "Apache-2.0 WITH LLVM-exception", "GPL-2.0-only OR MIT AND Zlib"),
    "BSD-3-Clause AND (MIT OR MPL-2.0) AND CC0-1.0",
)
NOT_ALLOWED = (
    *("MIT AND GPL-3.0-only", "GPL-3.0-only WITH GCC-exception-3.1", "(MIT AND MPL-2.0) OR GPL-2.0-or-later"),
    *("GPL-2.0-only AND MIT OR MPL-2.0", "LicenseRef-Proprietary", "MIT AND", "(MIT", "MIT WITH", ")", ""),
)


@pytest.mark.parametrize("expression", [*ALLOWED, *NOT_ALLOWED])
def test_an_expression_is_met_with_permissive_licences_alone(expression):
    assert allows(expression) is (expression in ALLOWED)


BSD_WITH_GPL = "Redistribution and use in source and binary forms ... bundled: libgfortran, GPL-3.0-with-exception " * 3


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (metadata("BSD-3-Clause"), "BSD-3-Clause"),
        (metadata("MIT", licence="GPL"), "MIT"),  # an expression replaces the older fields
        (metadata(licence="MIT License"), "MIT"),
        (metadata(licence="UNKNOWN", classifiers=["OSI Approved :: MIT License"]), "MIT"),
        (metadata(classifiers=["OSI Approved", "OSI Approved :: ISC License (ISCL)"]), "ISC"),
        (metadata(licence="BSD-3-Clause", classifiers=["OSI Approved :: BSD License"]), "BSD-3-Clause"),
        (metadata(licence=BSD_WITH_GPL, classifiers=["OSI Approved :: BSD License"]), "BSD"),
    ],
)
def test_what_is_permissive_and_how_it_is_called(given, name):
    found = decide(given)
    assert (found.permissive, found.name, found.why) == (True, name, "")


@pytest.mark.parametrize(
    "given",
    [
        metadata(),
        metadata("MPL-2.0"),
        metadata(licence="Apache"),  # of which version?
        metadata(licence="MIT and proprietary"),
        metadata(licence=BSD_WITH_GPL),
        metadata(licence="MIT", classifiers=["OSI Approved :: GNU General Public License v3 (GPLv3)"]),
        metadata(licence="GPL", classifiers=["OSI Approved :: MIT License"]),
        metadata(classifiers=["OSI Approved :: MIT License", "Other/Proprietary License"]),
    ],
)
def test_what_is_not_said_or_not_permissive_is_left_out_with_a_reason(given):
    found = decide(given)
    assert not found.permissive and found.why
