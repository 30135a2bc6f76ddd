"""RPC servers whose replies are changed: an answer, or an error of two lines."""

import random
import struct

from fuzzing import cases, specdec
from rpc import COMMANDS, SILENT, lying_server, rpc_servers

SECONDS = 10
"""Of waiting, five of them for a server that doesn't answer; not of processor time."""
REPLYING = [name for name in COMMANDS if name not in SILENT]
NUMBERS = (0, 1, 3, 2**20, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)


class Lie:
    """Changes some of the replies to a command, the same way for each."""

    def __init__(self, chance: random.Random) -> None:
        self.command, self._first, self._seed = chance.choice(REPLYING), chance.choice((0, 0, 1, 3)), chance.random()
        if self.command == "device_count":
            self._first = 0  # ggml asks once more, and believes a second answer
        self._way = chance.choice(("number", "number", "bit", "bytes", "length", "cut", "longer"))
        self._seen = 0

    def __str__(self) -> str:
        return f"{self._way} of {self.command} from {self._first} on, {self._seed}"

    def __call__(self, command: str, reply: bytes) -> bytes:
        if command != self.command:
            return reply
        self._seen += 1
        if self._seen <= self._first:
            return reply
        chance = random.Random(self._seed)
        body, size = bytearray(reply[8:]), len(reply) - 8
        match self._way:
            case "number":
                at = 8 * chance.randrange(max(1, size // 8))
                body[at : at + 8] = struct.pack("<Q", chance.choice(NUMBERS))[: min(8, size - at)]
            case "bit":
                body[chance.randrange(size)] ^= 1 << chance.randrange(8)
            case "bytes":
                body[:] = chance.randbytes(size)
            case "length":
                return struct.pack("<Q", chance.choice(NUMBERS)) + body
            case "cut":
                return reply[: chance.randrange(len(reply))]
            case "longer":
                return reply + chance.randbytes(9)
        return reply[:8] + bytes(body)


@cases(200)
def test_lying_servers(chance):
    lie = Lie(chance)
    with rpc_servers(1) as (server,), lying_server(server, lie) as where:
        args = ("run", "--rpc", where, "--drafter", chance.choice(("none", "model")), "-n", 4, "--raw", "x")
        specdec(*args, seconds=SECONDS).assert_sound(lie, seconds=SECONDS)
