"""What the demo asks: eight prompts of its own, or a file's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PromptsError(ValueError):
    """The file of prompts cannot be used."""


@dataclass(frozen=True)
class Prompt:
    """One question; `temperature` 0 is greedy, `max_tokens` None is the demo's own limit."""

    text: str
    temperature: float = 0.0
    max_tokens: int | None = None


_STORY = """\
Mara had kept the lighthouse on Gull Rock for twenty years, and her father had kept it before \
her. The tower was white, and it stood so close to the edge of the cliff that in winter the spray \
froze on its windows. Every evening she climbed the hundred and twelve steps, cleaned the lens \
with a soft cloth, and lit the lamp. The ships that passed were mostly small: fishing boats that \
came home with herring, and now and then the mail boat from the mainland, which brought flour, \
newspapers and letters from her brother.

One night in November the storm was so strong that the mail boat did not come. Mara saw a light \
far out, where no light should be. It rose and fell with the waves, and then it was gone. She \
rang the bell, took the long rope and her lantern, and went down to the landing place. There she \
waited for an hour in the rain. At last a small boat came out of the dark with three people in \
it: the old captain of the mail boat, a young doctor, and a girl of about ten years who held a \
wet cat in her arms. They had lost their engine and had rowed with one broken oar. Mara threw \
the rope, and on the third try the captain caught it."""

_TIMETABLE = """\
The ferry to the island of Sorn leaves the old harbour twice a day, at nine in the morning and at \
four in the afternoon. The crossing takes fifty minutes. A ticket costs eight pounds, children \
under six years travel free, and dogs are welcome on the upper deck. In winter, when the sea is \
rough, the captain may cancel the afternoon trip; a red flag on the harbour wall tells the \
passengers."""

PROMPTS = (
    Prompt("What is the capital of France?"),
    Prompt(f"{_STORY}\n\nSummarise this story in one sentence."),
    Prompt("Name three primary colours in one line."),
    Prompt("How do I make a cup of tea? Answer in three short steps."),
    Prompt(f"{_STORY}\n\nHow many people were in the small boat? Answer in one sentence."),
    Prompt("Write one sentence about the sea.", temperature=0.7),
    Prompt("Why do leaves change their colour in autumn? Answer in two sentences."),
    Prompt(f"{_TIMETABLE}\n\nWhat does a ticket cost? Answer in one sentence."),
)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Prompts of a file: one a line, or a JSON list.

    The list's items are texts, or objects with "prompt" and perhaps "temperature", "max_tokens".
    Raises PromptsError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsError(f"cannot read {path}: {error}") from error
    items: Sequence[Any]
    if text.lstrip().startswith("["):
        try:
            items = json.loads(text)
        except ValueError as error:
            raise PromptsError(f"{path} is no JSON: {error}") from error
    else:
        items = [line for line in text.splitlines() if line.strip()]
    prompts = tuple(_prompt(item, f"{path}, prompt {index}") for index, item in enumerate(items, 1))
    if not prompts:
        raise PromptsError(f"{path} has no prompt")
    return prompts


def _prompt(item: Any, where: str) -> Prompt:
    if isinstance(item, str):
        return Prompt(item)
    if not isinstance(item, dict) or not isinstance(item.get("prompt"), str):
        raise PromptsError(f'{where}: a text, or an object with "prompt", is needed')
    if unknown := set(item) - {"prompt", "temperature", "max_tokens"}:
        raise PromptsError(f"{where}: unknown {', '.join(sorted(unknown))}")
    temperature, most = item.get("temperature", 0.0), item.get("max_tokens")
    if not isinstance(temperature, int | float) or not 0 <= temperature < 100:
        raise PromptsError(f"{where}: temperature must be a number from 0 to 100")
    if most is not None and (type(most) is not int or most < 1):
        raise PromptsError(f"{where}: max_tokens must be a whole number from 1")
    return Prompt(item["prompt"], float(temperature), most)
