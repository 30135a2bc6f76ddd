"""`specdec serve`: an OpenAI-compatible server, with a page to chat on."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.decoding.errors import UsageError


@opt.takes(*opt.ALL)
def serve(
    given: opt.Given,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for other machines, too.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    parallel: Annotated[int, typer.Option("--parallel", "-np", min=1, max=64, help="Answers at the same time.")] = 4,
    queue: Annotated[int, typer.Option(min=0, help="Answers that may wait for a slot.")] = 64,
    api_key: Annotated[str | None, typer.Option(envvar="SPECDEC_API_KEY", help="Key that requests must bring.")] = None,
    cors: Annotated[list[str] | None, typer.Option(help="Origin whose pages may ask; may be repeated.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to finish answers when told to stop.")] = 30.0,
) -> None:
    """Serve a model to editors and other programs by OpenAI's API, with a page to chat on.

    -c is the context of one slot. Sampling options are what requests go by that do not say.
    """
    from specdec_cli.cli.output import print_parts
    from specdec_cli.cli.slots_opening import open_slots

    if api_key == "":
        raise UsageError("the API key is empty", "Give one, or leave --api-key and SPECDEC_API_KEY out.")
    try:
        from specdec_cli.server.gate import LOOPBACK, Gate
        from specdec_cli.server.request_answering import Answering
        from specdec_cli.server.running import listen, serve_forever
    except ImportError as error:
        what = f"specdec serve needs more packages: {error.name} is missing"
        raise UsageError(what, 'Install them: pip install "specdec-cli[serve]".') from None
    with listen(host, port) as listening, open_slots(given, parallel, queue) as slots:
        local = host in LOOPBACK
        shown = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listening.getsockname()[1]}"
        what = f"{slots.names[0]}: API at {url}/v1, chat at {url}; {parallel} slots of {slots.n_ctx:,} tokens"
        print_parts(f"{what}; Ctrl-C ends it", stderr=True, pipe_width=200)
        with closing(Answering(slots.scheduler, slots.max_tokens)) as answering:
            number = serve_forever(answering, slots.names, listening, Gate(api_key, cors or (), local), grace)
    raise typer.Exit(128 + number)
