"""What `test_templates` runs in a child."""

import ggufs

from specdec_cli.cli.error_reporting import complain
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf import chat_template as chat
from specdec_cli.gguf.header import Header


def rendered(template: str, text: str) -> None:
    """What `run` does with a template before the model reads anything."""
    metadata = {"tokenizer.ggml.tokens": ggufs.string_array(["<s>"]), "tokenizer.chat_template": template}
    try:
        chat.render(Header("chat.gguf", 3, metadata, (), 0), [{"role": "user", "content": text}])
    except SpecdecError as error:
        complain(error)
        raise SystemExit(error.exit_code) from None
