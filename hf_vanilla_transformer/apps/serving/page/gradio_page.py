"""The page of `serve --page`: a translation, its beams, the probabilities of its tokens, and attention."""

import asyncio
import math
from html import escape
from typing import Any

import gradio as gr
from fastapi import FastAPI, HTTPException
from fastapi.responses import RedirectResponse

from ....data.target_language import short_name
from ....model.input_checks import is_blank, sides_of
from ....translation.concurrent_use import encode
from ....translation.sentence_splitting import join_translations
from ....translation.translation_details import FLAG_MEANINGS, Translation
from ...pictures.attention import plot_attention
from ...pictures.forward_pass import KINDS
from ...pictures.token_labels import token_texts
from ...terms.glossary import parse_terms
from ..errors import RequestError
from ..service import Service


PATH = "/page"
_MOST_BEAMS = 16
# Routes of gradio's API that the page does not use, and that would store what anybody sends.
_STORING = ("upload", "process_recording", "deep_link", "component_server", "run-history")
# Open pages whose translations are kept in memory, so that their tabs can show them.
_MOST_SESSIONS = 500
# Sentences of more tokens have no attention picture: nobody could read it, and it takes long to draw.
_MOST_TOKENS = 100
_CSS = """
.tokens {display: flex; flex-wrap: wrap; gap: 0.35rem; padding: 0.5rem 0}
.tokens span {display: flex; flex-direction: column; align-items: center; padding: 0.2rem 0.5rem; border-radius: 0.3rem;
  border: 1px solid var(--border-color-primary); white-space: pre}
.tokens small {opacity: 0.75}
.hypotheses.hypotheses {width: 100%; border-collapse: collapse}
.hypotheses.hypotheses, .hypotheses.hypotheses :is(thead, tbody, tr) {border: 0 !important}
.hypotheses.hypotheses :is(th, td) {text-align: left; padding: 0.4rem 0.6rem; overflow-wrap: anywhere; border: 0;
  border-bottom: 1px solid var(--border-color-primary)}
.attention {overflow-x: auto}
.attention div {justify-content: safe center !important; align-items: safe center !important}
.attention img {min-width: 44rem}
.hypotheses.hypotheses :is(th, td):not(:first-child) {text-align: right; white-space: nowrap}
"""
_HELP = "A term and its translation in each line. More beams place terms better."
_FLAGS = {
    "split": "A sentence is longer than any that the model was trained on, so it was split.",
    "longer_than_training": "The text is longer than any that the model was trained on.",
    "truncated": f"The translation was {FLAG_MEANINGS['truncated']}.",
    "repetition": "The translation repeats itself.",
}
_TITLES = {
    "cross": "decoder to source",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
}


def add_page(app: FastAPI, service: Service) -> None:
    """Add the page to the server's app, at `PATH`, to which the app's root leads."""

    @app.get("/", include_in_schema=False)
    async def to_page() -> RedirectResponse:
        return RedirectResponse(f"{PATH[1:]}/")

    async def refuse() -> None:
        raise HTTPException(403, "the page stores no files.")

    for name in _STORING:
        for path in (f"{PATH}/gradio_api/{name}", f"{PATH}/gradio_api/{name}/{{rest:path}}"):
            app.add_api_route(path, refuse, methods=["GET", "POST"], include_in_schema=False)
    gr.mount_gradio_app(
        app, build_page(service), PATH, theme=gr.themes.Default(), css=_CSS, ssr_mode=False, footer_links=[]
    )
    # An open page holds a connection, for which a shutdown would wait.
    mounted: Any = app.routes[-1]
    app.state.end_streams = mounted.app.stop_event.set


def build_page(service: Service) -> gr.Blocks:
    """The page, whose work the service does."""
    with gr.Blocks(title=service.card.title, analytics_enabled=False) as page:
        gr.Markdown(f"# {service.card.title}")
        with gr.Row():
            with gr.Column(min_width=280):
                label = _label("Text", service.source_language)
                source = gr.Textbox(label=label, lines=4, max_lines=12, autofocus=True)
                terms = gr.Textbox(label="Glossary", lines=2, info=_HELP, placeholder="machine = Maschine")
                terms.visible = service.runtime.takes_phrases
                beams = gr.Slider(1, _MOST_BEAMS, service.num_beams, step=1, label="Beams")
                splits = gr.Checkbox(service.split_sentences, label="Split into sentences")
                inputs = [source, terms, beams, splits]
                if service.target_codes:
                    inputs.append(_target_menu(service))
                button = gr.Button("Translate", variant="primary")
            with gr.Column(min_width=280):
                label = _label("Translation", service.card.target_language)
                target = gr.Textbox(label=label, lines=4, max_lines=12, interactive=False, buttons=["copy"])
                notes = gr.Markdown()
        if service.card.examples:
            gr.Examples([[text] for text in service.card.examples], source, label="Examples")
        chosen = gr.Dropdown([], label="Sentence", visible=False)
        with gr.Tab("Beams"):
            hypotheses = gr.HTML("<p>The hypotheses of beam search, best first.</p>")
        with gr.Tab("Tokens"):
            tokens = gr.HTML("<p>The probability of each token given the tokens before it.</p>")
        sentences = gr.State([])

        async def translate(
            text: str, lines: str, count: int, split: bool, target_code: str | None = None
        ) -> tuple[Any, ...]:
            options = {**_options(lines, int(count)), **service.target_options(target_code)}
            ((pieces, found),) = await _asking(service, service.translate_sentences([text], options, split))
            whole = join_translations(pieces, found)
            # The model did not get blank pieces, nor numbers that are copied; these have no tokens to show.
            pairs = [(piece.text, each) for piece, each in zip(pieces, found, strict=True) if each.tokens]
            choices = [(f"{number}. {text}", number - 1) for number, (text, _) in enumerate(pairs, start=1)]
            menu = gr.Dropdown(choices, value=0 if pairs else None, visible=len(pairs) > 1)
            return whole.text, _notes(whole), menu, *show(pairs, 0), pairs

        def show(pairs: list[tuple[str, Translation]], index: int | None) -> tuple[str, str]:
            if index is None or index >= len(pairs):
                return "", ""
            return _hypotheses(pairs[index][1]), _tokens(service, pairs[index][1])

        outputs = [target, notes, chosen, hypotheses, tokens, sentences]
        events = [button.click, source.submit, terms.submit]
        gr.on(events, translate, inputs, outputs, api_name="translate")
        chosen.input(show, [sentences, chosen], [hypotheses, tokens], api_name="sentence")
        if service.runtime.has_forward_pass:
            _add_attention(service, page, sentences, chosen)
    # The service limits how many requests are in work.
    most = service.settings.max_in_flight
    page.queue(max_size=most, default_concurrency_limit=most)
    page.state_session_capacity = _MOST_SESSIONS
    return page


def _target_menu(service: Service) -> gr.Dropdown:
    """The menu of the languages that a model of several translates into."""
    choices = [(short_name(service.target_codes, code), code) for code in service.target_codes]
    return gr.Dropdown(choices, value=service.default_target_code or service.target_codes[0], label="Into")


def _add_attention(service: Service, page: gr.Blocks, sentences: gr.State, chosen: gr.Dropdown) -> None:
    config = service.model.config
    with gr.Tab("Attention"):
        with gr.Row():
            kinds, layers = [(_TITLES[kind], kind) for kind in reversed(KINDS)], list(range(config.num_hidden_layers))
            kind = gr.Dropdown(kinds, value="cross", label="Attention", min_width=240)
            layer = gr.Dropdown(layers, value=layers[-1], label="Layer", min_width=240)
            head = gr.Dropdown(["all", *range(config.num_attention_heads)], value="all", label="Head", min_width=240)
        plot = gr.Plot(show_label=False, elem_classes="attention")
    is_dark = gr.Checkbox(visible=False)
    page.load(None, None, is_dark, js="() => document.body.classList.contains('dark')")

    def picture(source: str, target: str, kind: str, layer: int, head: Any, theme: str) -> Any:
        lengths = [len(encode(service.tokenizer, text).input_ids) for text in (source, target)]
        if max(lengths) > _MOST_TOKENS:
            return None
        options: Any = {"kind": kind, "layer": layer, "head": None if head == "all" else head, "theme": theme}
        return plot_attention(service.model, service.tokenizer, source, target, **options)

    async def draw(pairs: list[Any], index: int | None, kind: str, layer: int, head: int | str, is_dark: bool) -> Any:
        if index is None or index >= len(pairs) or is_blank(pairs[index][1].text):
            return None
        source, found = pairs[index]
        theme = "dark" if is_dark else "light"
        return await _asking(service, service.call(picture, source, found.text, kind, layer, head, theme))

    inputs: list[Any] = [sentences, chosen, kind, layer, head, is_dark]
    events = [sentences.change, chosen.input, kind.change, layer.change, head.change]
    gr.on(events, draw, inputs, plot, api_name="attention")


def _options(lines: str, beams: int) -> dict[str, Any]:
    """Arguments of `translate()` from what the page was given."""
    options: dict[str, Any] = {"num_beams": beams, "num_return_sequences": beams, "return_details": True}
    try:
        terms = parse_terms(lines.splitlines(), "the glossary", r"\t|=", 'a tab or "="')
    except ValueError as error:
        raise gr.Error(str(error), duration=None) from error
    return {**options, "glossary": terms} if terms else options


def _notes(found: Translation) -> str:
    """What may be wrong with a translation, in sentences."""
    return " ".join(text for flag, text in _FLAGS.items() if flag in found.flags)


async def _asking(service: Service, work: Any) -> Any:
    """The result of the service's work; its errors as messages of the page."""
    try:
        return await asyncio.wait_for(work, service.settings.request_seconds)
    except TimeoutError:
        raise gr.Error("This took too long; try a shorter text, or fewer beams.", duration=None) from None
    except (RequestError, ValueError) as error:
        raise gr.Error(str(error), duration=None) from error


def _label(text: str, language: str | None) -> str:
    return f"{text} ({language})" if language else text


def _hypotheses(best: Translation) -> str:
    """A row for each hypothesis: its text, the score that ranks it, and its log-probability."""
    rows = "".join(
        f"<tr><td>{escape(each.text)}</td><td>{each.score:.3f}</td><td>{sum(each.log_probs):.3f}</td></tr>"
        for each in (best, *best.alternatives)
    )
    head = "<tr><th>Hypothesis</th><th>Score</th><th>log P</th></tr>"
    return f'<table class="hypotheses"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def _tokens(service: Service, found: Translation) -> str:
    """Tokens with their probabilities, the less probable the redder."""
    ids = sides_of(service.tokenizer)[1].convert_tokens_to_ids(found.tokens)
    texts = token_texts(service.tokenizer, ids, of_target=True)
    spans = [
        f'<span style="background: rgb(220 38 38 / {0.6 * (1 - probability):.2f})">{escape(text)}'
        f"<small>{probability:.0%}</small></span>"
        for text, probability in zip(texts, map(math.exp, found.log_probs), strict=True)
    ]
    return f'<div class="tokens">{"".join(spans)}</div>'
