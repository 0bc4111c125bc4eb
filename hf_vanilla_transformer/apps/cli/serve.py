"""Serve translations by HTTP, for clients of the Hub and of LibreTranslate, and as a page.

hf-vanilla-transformer serve --model_name_or_path runs/mine
hf-vanilla-transformer serve --model_name_or_path runs/mine --page --host 0.0.0.0 --port 80
"""

import os
import sys
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch

from ...data.target_language import codes_of
from ...support.argument_checks import check_number, check_optional
from ...support.build_arguments import option
from ...support.user_errors import InputError, needing
from ...translation.decoding_arguments import DecodingArguments
from ...translation.loading_arguments import LoadingArguments
from ...translation.translate import translate
from ..serving.limits import ServingSettings
from ..serving.model_card_facts import CardFacts, read_card
from ..serving.page.hub_space import write_space
from ..terms.glossary import Glossary
from .parser import parse, program
from .shared_options import EngineArguments, load_given, load_terms


_ONE_IS_MISSING = "one of source_lang and target_lang is missing; give both, or none."


@dataclass
class ServeArguments:
    """Where to serve, and what."""

    host: str = option("127.0.0.1", "Address; 0.0.0.0 is every network of this machine.")
    port: int = option(8000, "Port; 0 is any free one.")
    page: bool = option(False, "Also serve a page for people; needs the extra page.")
    write_space: str | None = option(None, "Write the page into this new folder, for a Space of the Hub, and end.")
    split_sentences: bool = option(True, "Split texts into sentences, and keep their white space and line breaks.")
    glossary: str | None = option(None, "A file of terms, as of translate, for requests that do not give others.")
    threads: int | None = option(None, "Threads of the model; by default torch's.")
    source_lang: str | None = option(None, "Code of the source language; by default of the model's card.")
    target_lang: str | None = option(
        None,
        "The same of the target language; or of a model of several, the one of requests that name none.",
    )

    def __post_init__(self) -> None:
        check_optional(self, "threads")
        check_number("port", self.port, 0, 65535)
        if not self.host:
            raise InputError("host is empty; give an address, such as 127.0.0.1, or 0.0.0.0 for every network.")
        if self.target_lang is None and self.source_lang is not None:
            raise InputError(_ONE_IS_MISSING)


class Arguments(NamedTuple):
    serve: ServeArguments
    model: LoadingArguments
    engine: EngineArguments
    decoding: DecodingArguments
    limits: ServingSettings


@program
def main(arguments: list[str]) -> None:
    """Serve as the command line says, until interrupted."""
    args = parse(Arguments, __doc__, arguments, "serve")
    asked = args.serve
    if asked.write_space is not None:
        given = {each.name for part in args for each in fields(part) if getattr(part, each.name) != each.default}
        for name in sorted(given - {"write_space", "page", "model_name_or_path", "token"}):
            raise InputError(f"{name} has no effect on --write_space; leave it out, and add it to the Space's app.py.")
        write_space(asked.write_space, args.model.model_name_or_path, _card(asked, args.model))
        return
    with needing("page" if asked.page else "serve", "serve needs"):
        import sentencex  # noqa: F401

        from ..serving.http.routes import build_app
        from ..serving.http.uvicorn_server import listen, run
        from ..serving.service import Service

        if asked.page:
            import matplotlib  # noqa: F401

            # gradio reads it when it is imported.
            os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
            from ..serving.page.gradio_page import add_page
    terms = load_terms(asked.glossary, args.engine)
    # Before loading, which takes longer than to see that the port is taken.
    listener = listen(asked.host, asked.port)
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    tokenizer, model = load_given(args.model, args.engine)
    card = _card(asked, args.model)
    has_target_codes = bool(codes_of(tokenizer))
    if asked.target_lang is not None and asked.source_lang is None and not has_target_codes:
        raise InputError(_ONE_IS_MISSING)
    splits = (card.source_language or True) if asked.split_sentences else False
    options = {"split_sentences": splits, **args.decoding.generate_kwargs()}
    if has_target_codes:
        options["target_lang"] = asked.target_lang
    if terms is not None:
        options["glossary"] = Glossary(terms, tokenizer)
        translate(model, tokenizer, [], **options)  # Checks settings before the first request.
    service = Service(model, tokenizer, args.limits, card, options)
    app = build_app(service)
    if asked.page:
        add_page(app, service)
    host, port = listener.getsockname()[:2]
    print(f"serving {service.card.title} at http://{f'[{host}]' if ':' in host else host}:{port}", file=sys.stderr)
    run(app, args.limits, listener)


def _card(args: ServeArguments, loading: LoadingArguments) -> CardFacts:
    card = read_card(loading.model_name_or_path, revision=loading.revision, token=loading.token)
    if args.source_lang is None:
        return card
    return card._replace(source_language=args.source_lang, target_language=args.target_lang)
