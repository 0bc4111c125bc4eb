"""Serve translations over HTTP, for clients of the Hugging Face Hub and of LibreTranslate. With --page, also serve a
web page for people.

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
from .shared_options import EngineArguments, load_terms, load_tokenizer_and_model


_ONE_IS_MISSING = "one of source_lang and target_lang is missing; give both, or none."


@dataclass
class ServeArguments:
    """Command-line arguments for the server's address and for how requests are translated."""

    host: str = option("127.0.0.1", "Address; 0.0.0.0 is every network of this machine.")
    port: int = option(8000, "Port; 0 is any free one.")
    page: bool = option(False, "Also serve a page for people; needs the extra page.")
    write_space: str | None = option(None, "Write the page into this new folder, for a Space of the Hub, and exit.")
    split_sentences: bool = option(True, "Split texts into sentences, and keep their white space and line breaks.")
    glossary: str | None = option(
        None, "A file of terms, as in translate, for requests that have no glossary of their own."
    )
    threads: int | None = option(None, "Threads of the model; by default torch's.")
    source_lang: str | None = option(None, "Code of the source language; by default the code on the model's card.")
    target_lang: str | None = option(
        None,
        "Code of the target language. If the model has several, requests that name none get this one.",
    )

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError if an option is wrong, or if there is a source language without a target."""
        check_optional(self, "threads")
        check_number("port", self.port, 0, 65535)
        if not self.host:
            raise InputError("host is empty; give an address, such as 127.0.0.1, or 0.0.0.0 for every network.")
        # A target language alone is allowed here, because the model may have several. `main` checks it later, when the
        # model has been loaded.
        if self.target_lang is None and self.source_lang is not None:
            raise InputError(_ONE_IS_MISSING)


class Arguments(NamedTuple):
    """All argument groups of `serve`, in the order in which `--help` lists them."""

    serve: ServeArguments
    model: LoadingArguments
    engine: EngineArguments
    decoding: DecodingArguments
    limits: ServingSettings


@program
def main(arguments: list[str]) -> None:
    """Serve translations until the program is interrupted. With `--write_space`, only write the web page's folder."""
    args = parse(Arguments, __doc__, arguments, "serve")
    serve_args = args.serve
    if serve_args.write_space is not None:
        _write_space(args, serve_args.write_space)
        return
    # If an optional library is missing, the error message names the extra to install: "page" or "serve".
    with needing("page" if serve_args.page else "serve", "serve needs"):
        import sentencex  # noqa: F401

        from ..serving.http.routes import build_app
        from ..serving.http.uvicorn_server import listen, run
        from ..serving.service import Service

        if serve_args.page:
            import matplotlib  # noqa: F401

            # gradio reads this variable when it is imported.
            os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
            from ..serving.page.gradio_page import add_page

    terms = load_terms(serve_args.glossary, args.engine)
    # The port is opened before the model is loaded, so that a port in use is reported at once.
    listener = listen(serve_args.host, serve_args.port)
    if serve_args.threads is not None:
        torch.set_num_threads(serve_args.threads)
    tokenizer, model = load_tokenizer_and_model(args.model, args.engine)
    card = _read_card(serve_args, args.model)
    has_target_codes = bool(codes_of(tokenizer))
    # `--target_lang` alone is the default target language of a model that has several.
    if serve_args.target_lang is not None and serve_args.source_lang is None and not has_target_codes:
        raise InputError(_ONE_IS_MISSING)

    options = args.decoding.generate_kwargs()
    # Sentences are split by the rules of the source language if the card states it. Otherwise, `True` selects the
    # language in the tokenizer's settings.
    options["split_sentences"] = False
    if serve_args.split_sentences:
        options["split_sentences"] = card.source_language or True
    if has_target_codes:
        options["target_lang"] = serve_args.target_lang
    if terms is not None:
        options["glossary"] = Glossary(terms, tokenizer)
        # Translating an empty list checks the settings, so that an error is reported before the first request.
        translate(model, tokenizer, [], **options)

    service = Service(model, tokenizer, args.limits, card, options)
    app = build_app(service)
    if serve_args.page:
        add_page(app, service)
    # With `--port 0`, the system has chosen the port. IPv6 addresses have two more fields.
    host, port = listener.getsockname()[:2]
    if ":" in host:
        # URLs have brackets around IPv6 addresses.
        host = f"[{host}]"
    print(f"serving {service.card.title} at http://{host}:{port}", file=sys.stderr)
    run(app, args.limits, listener)


def _write_space(args: Arguments, folder: str) -> None:
    """Write the web page to a new folder, for a Hugging Face Space.

    Raises InputError if an option is given that has no effect on the page.
    """
    for name in sorted(_changed_options(args)):
        if name not in ("write_space", "page", "model_name_or_path", "token"):
            raise InputError(f"{name} has no effect on --write_space; leave it out, and add it to the Space's app.py.")
    write_space(folder, args.model.model_name_or_path, _read_card(args.serve, args.model))


def _changed_options(args: Arguments) -> set[str]:
    """Return the names of the options whose values differ from their defaults, and of options without a default.

    `model_name_or_path` is the only option of `serve` without a default.
    """
    names = set()
    # `args` contains several dataclasses of options.
    for option_group in args:
        for field in fields(option_group):
            # Without a default, `field.default` is dataclasses.MISSING, which differs from every value. This would also
            # apply to an option whose default is a list, which has a `default_factory`, but `serve` has no such option.
            if getattr(option_group, field.name) != field.default:
                names.add(field.name)
    return names


def _read_card(serve_args: ServeArguments, model_args: LoadingArguments) -> CardFacts:
    """Read the facts on the model card. Languages on the command line override the languages on the card."""
    card = read_card(model_args.model_name_or_path, revision=model_args.revision, token=model_args.token)
    if serve_args.source_lang is None:
        return card
    return card._replace(source_language=serve_args.source_lang, target_language=serve_args.target_lang)
