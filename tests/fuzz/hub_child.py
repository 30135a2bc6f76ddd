"""What `test_hostile_hub` runs in a child."""

import time


def impatient(timeout: float, *args: object) -> None:
    """A command line in which nobody waits as long as outside of tests."""
    # They read the environment, which is the test's own only now.
    from fuzzing_child import command
    from huggingface_hub import constants

    from specdec_cli.pairs.hub import repository

    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))
    constants.HF_HUB_DOWNLOAD_TIMEOUT = constants.HF_HUB_ETAG_TIMEOUT = timeout
    repository._HEADERS_S = repository._LISTING_S = 2.0
    command([*map(str, args)])
