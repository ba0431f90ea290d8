"""The fault wall: for every fault of a provider, and every place of its answer, what the client gets (API-7, API-8b).

    python -m tests.support.faultywall        # writes docs/faults.md; a test compares

The two tables here are the expectation, and the only one: the tests take their cases from them, and so does the
document. An outcome is the same for all APIs that have the place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.faultyprovider import APIS, STREAM_PLACES, STREAMED, WHOLE_PLACES, said

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "faults.md"

STALLED, LOST, MALFORMED, CUT_SHORT, REDIRECTED = (
    "response_stalled", "provider_connection_lost", "provider_protocol_error", "provider_truncated",
    "provider_redirected",
)  # fmt: skip


class Outcome(NamedTuple):
    """What the client gets, in a word and in full."""

    word: str
    meaning: str


#: Outcomes by the letter that stands for them in the tables.
OUTCOMES = {
    "a": Outcome(
        "again",
        "nothing was shown: the client gets the whole answer of another provider and sees nothing else. With no "
        "other provider, an error with the code in the last column; behind a stall, once the provider was asked again "
        "as often as `recovery.max_attempts` says, if a probe found it well",
    ),
    "n": Outcome(
        "elsewhere",
        "nothing was shown: the client gets the whole answer of another provider. With no other provider, an error "
        "with the code in the last column at once: an engine that goes on with what was abandoned is not asked again, "
        "and its slot is taken until it has done with it",
    ),
    "o": Outcome("again, else its own", "the same. With no other provider, what this one answered, as it is"),
    "e": Outcome(
        "error event",
        "a part was shown: behind it comes the error event of the API, with the code in the last column, and the "
        "connection closes without the end of the body",
    ),
    "c": Outcome(
        "cut",
        "a part was shown, up to the middle of an event or of a whole answer, where an event would be taken for more "
        "of it: the connection closes without the end of the body",
    ),
    "d": Outcome(
        "cut at the deadline",
        "the same, when the model's `request_timeout_ms` is over: every byte of a whole answer is progress, so nothing "
        "has stalled. The log says `deadline_exceeded`",
    ),
    "s": Outcome("as sent", "passed on as it is: the provider's own word, or nothing that can be seen from outside"),
}

#: Streams. fault: (outcome at each of STREAM_PLACES, "-" where there is none; code)
STREAM = {
    "stall":                               ("aaaaaeceee", STALLED),
    "stall of an engine at work":          ("nn--------", STALLED),
    "cut":                                 ("aaaaaeceee", LOST),
    "reset":                               ("aaaaaeceee", LOST),
    "half-close":                          ("aaaaaeceee", LOST),
    "malformed chunk":                     ("--aaaeceee", MALFORMED),
    "clean end":                           ("--aaaecess", CUT_SHORT),
    "error event":                         ("--oo-s-ss-", ""),
    "error event that blames the request": ("--ss-s-s--", ""),
    "comments without end":                ("--aa-e-eee", STALLED),
    "flood of comments":                   ("--ee-e----", STALLED),
    "a byte now and then":                 ("-aaaacccc-", STALLED),
    "length too short":                    ("--aaaeces-", CUT_SHORT),
    "length too long":                     ("---------e", LOST),
    "429 with Retry-After":                ("o---------", ""),
    "502 with Retry-After":                ("o---------", ""),
    "503 with Retry-After":                ("o---------", ""),
    "500":                                 ("s---------", ""),
    "error without reading the body":      ("s---------", ""),
    "redirect":                            ("a---------", REDIRECTED),
    "400":                                 ("s---------", ""),
    "gzip that is plain":                  ("s---------", ""),
    "gzip that is garbage":                ("s---------", ""),
    "stream for whole, whole for stream":  ("s---------", ""),
    "no HTTP":                             ("a---------", MALFORMED),
    "head with garbage":                   ("a---------", MALFORMED),
    "head without end":                    ("a---------", MALFORMED),
    "head with two lengths":               ("a---------", MALFORMED),
    "head with length and chunks":         ("a---------", MALFORMED),
    "status outside HTTP":                 ("a---------", MALFORMED),
}  # fmt: skip

#: Whole answers. fault: (outcome at each of WHOLE_PLACES; code)
WHOLE = {
    "stall":                               ("aaacc-", STALLED),
    "stall of an engine at work":          ("nn----", STALLED),
    "cut":                                 ("aaacc-", LOST),
    "reset":                               ("aaacc-", LOST),
    "half-close":                          ("aaacc-", LOST),
    "malformed chunk":                     ("--accc", MALFORMED),
    "clean end":                           ("--ssss", ""),
    "a byte now and then":                 ("-add--", STALLED),
    "length too short":                    ("--sss-", ""),
    "length too long":                     ("-----c", LOST),
    "429 with Retry-After":                ("o-----", ""),
    "502 with Retry-After":                ("o-----", ""),
    "503 with Retry-After":                ("o-----", ""),
    "500":                                 ("s-----", ""),
    "error without reading the body":      ("s-----", ""),
    "redirect":                            ("a-----", REDIRECTED),
    "400":                                 ("s-----", ""),
    "gzip that is plain":                  ("s-----", ""),
    "gzip that is garbage":                ("s-----", ""),
    "stream for whole, whole for stream":  ("s-----", ""),
    "no HTTP":                             ("a-----", MALFORMED),
    "head with garbage":                   ("a-----", MALFORMED),
    "head without end":                    ("a-----", MALFORMED),
    "head with two lengths":               ("a-----", MALFORMED),
    "head with length and chunks":         ("a-----", MALFORMED),
    "status outside HTTP":                 ("a-----", MALFORMED),
}  # fmt: skip


class Case(NamedTuple):
    """One request. ``mode``: ``stream``, ``whole``, or ``kept``, a stream whose client has heard a keepalive before the
    fault. ``spare``: another provider can take it."""

    api: str
    mode: str
    fault: str
    place: str
    outcome: str  # the letter
    code: str
    spare: bool

    @property
    def stream(self) -> bool:
        return self.mode != "whole"

    @property
    def name(self) -> str:
        return f"{self.api} {self.mode}: {self.fault}, {self.place}, {'with' if self.spare else 'without'} a spare"


def cases(api: str, mode: str) -> Iterator[Case]:
    """All of one API. A client that has heard a keepalive makes a difference only while nothing was shown."""
    if mode == "whole":
        table, places = WHOLE, list(WHOLE_PLACES)
    else:
        table, places = STREAM, list(STREAM_PLACES)
        if said(api, "x").ending == len(said(api, "x").events) - 1:
            places[places.index("before [DONE]")] = ""  # its last event is the one that says that all is said
    for fault, (outcomes, code) in table.items():
        for place, outcome in zip(places, outcomes, strict=True):
            if outcome == "-" or not place or (mode == "kept" and outcome in "ecd"):
                continue
            if mode == "kept" and places.index(place) >= places.index("behind it"):
                continue
            for spare in (True, False):
                yield Case(api, mode, fault, place, outcome, code, spare)


MODES = [(api, mode) for mode in ("stream", "kept", "whole") for api in (APIS if mode == "whole" else STREAMED)]

# ---- the document ----------------------------------------------------------------------------------------------------

INTRODUCTION = """\
# When a provider goes wrong

Written by `make docs` from the tables of `tests/support/faultywall.py`; do not edit.
`tests/integration/test_fault_wall.py` plays every fault at every place, for every API, against a real edge and a real
node, with another provider at hand and without: %d cases.
`python -m tests.support.faultyprovider --help` is the same provider for use by hand.

What the client gets:

%s
In every case the failing provider's slot is taken until its call has really ended, and free from then on.

A streaming client that waits for long hears keepalive comments. It has had the head of a stream then, so that an error,
or a provider's answer with another status or of another kind, comes to it as the error event of its API, and the
connection closes without the end of the body. Another provider's answer is as whole as ever.
"""

STREAMS = """
## Streams

%s
The first event with content is the commit: from then on there is no other answer. `[DONE]` is of chat and completions;
`response.completed` and `message_stop` are the events that end the other two streams.

"""

WHOLES = """
## Whole answers

The first byte of the body is the commit. The body is not read: what is framed well is passed on.

"""


def document() -> str:
    """The whole file."""
    total = sum(1 for api, mode in MODES for _ in cases(api, mode))
    meanings = "".join(f"- **{word}**: {meaning}.\n" for word, meaning in OUTCOMES.values())
    numbered = "".join(f"{number}. {place}\n" for number, place in enumerate(STREAM_PLACES, 1))
    places = f"How far the answer comes before the fault:\n\n{numbered}"
    whole = "".join(f"{number}. {place}\n" for number, place in enumerate(WHOLE_PLACES, 1))
    return (
        INTRODUCTION % (total, meanings)
        + STREAMS % places
        + _table(STREAM, len(STREAM_PLACES))
        + WHOLES
        + whole
        + "\n"
        + _table(WHOLE, len(WHOLE_PLACES))
    )


def _table(table: dict[str, tuple[str, str]], places: int) -> str:
    heads = " | ".join(str(n) for n in range(1, places + 1))
    text = f"| fault | {heads} | code |\n| --- |{' --- |' * places} --- |\n"
    for fault, (outcomes, code) in table.items():
        cells = " | ".join(OUTCOMES[o][0] if o in OUTCOMES else "" for o in outcomes)
        text += f"| {fault} | {cells} | {f'`{code}`' if code else ''} |\n"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
