"""Preparation and check of the base model's files."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from abstain.config.params import LLMParams
from abstain.config.settings import Settings, load_settings
from abstain_tasks.runs.shell import run
from abstain_tasks.runs.workspace import project_root

PREPARE = (
    "from abstain.config.params import load_params\n"
    "from abstain.config.settings import load_settings\n"
    "from abstain.llm.engine.loading import find_model, load_tokenizer\n"
    "load_tokenizer(find_model(load_params().llm.model, load_settings()))\n"
)


@contextmanager
def prepare_base_model() -> Iterator[None]:
    """Convert an embedded base model, once on each machine, in a process that runs while the block does.

    The block leaves a processor idle. An error is not raised here, because the first stage that loads the model raises
    it, too.

    Yields:
        Nothing.
    """
    if any(load_settings().models.glob("*")):
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, ["python", "-c", PREPARE], project_root())
        yield


def require_base_model(llm: LLMParams, settings: Settings) -> None:
    """Load the base model and read an answer with it in its prompt layout.

    Args:
        llm: The base model and its layout.
        settings: Settings of this machine.

    Raises:
        AbstainError: The model cannot be loaded or read with.
    """
    from abstain.llm.engine.device import choose_device, choose_dtype  # torch: seconds
    from abstain.llm.engine.engine import Engine
    from abstain.llm.engine.loading import find_model, load_model
    from abstain.llm.engine.requests import NLL, Request
    from abstain.llm.engine.tokenization import load_model_layout, warn_about_layout

    ref, device = find_model(llm.model, settings), choose_device(settings)
    layout = load_model_layout(ref, llm.layout)
    warn_about_layout(ref, llm.layout)
    loaded = load_model(ref, device, choose_dtype(settings, device))
    engine = Engine(
        replace(loaded, self_check_folder=settings.home.resolve() / "decoder-checks"), settings.batch_tokens
    )
    text = layout.render("What is the fee?", ["The fee is 5 euros."], "5 euros.")
    list(engine.run({"answer": Request(text, NLL(("answer",)), "a short answer")}))
