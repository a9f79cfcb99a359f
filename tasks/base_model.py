"""The base model's files, prepared beside other work."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from abstain.config.settings import load_settings
from tasks.shell import run
from tasks.workspace import project_root

PREPARE = (
    "from abstain.config.params import load_params\n"
    "from abstain.config.settings import load_settings\n"
    "from abstain.llm.engine.loading import load_tokenizer, resolve\n"
    "load_tokenizer(resolve(load_params().llm.model, load_settings()))\n"
)


@contextmanager
def base_model_prepared() -> Iterator[None]:
    """Convert an embedded base model, once a machine, in a process beside the block, which leaves a processor idle.

    An error is not raised here: the first stage that loads the model meets it, too.
    """
    if any(load_settings().models.glob("*")):
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, ["python", "-c", PREPARE], project_root())
        yield
